"""Fault injection for tests. Switched by the environment only, so that no flag can turn it on by mistake.

``SGLANG_WAVEPP_FAULT`` holds a comma-separated list of names:

- ``zero_snapshot``: recurrent states are recorded as zeros, so that every prefix hit on them restores a wrong
  state. The negative control of the comparison tests.
"""

from __future__ import annotations

import os

FAULT_VARIABLE = "SGLANG_WAVEPP_FAULT"
ZERO_SNAPSHOT = "zero_snapshot"
KNOWN_FAULTS = frozenset({ZERO_SNAPSHOT})


class UnknownFaultError(ValueError):
    """The environment names a fault that does not exist, so a test would silently check nothing."""


def requested_faults() -> frozenset[str]:
    """Names of the faults that the environment switches on.

    Raises:
        UnknownFaultError: a name is not in ``KNOWN_FAULTS``.
    """
    names = frozenset(name.strip() for name in os.environ.get(FAULT_VARIABLE, "").split(",") if name.strip())
    unknown = sorted(names - KNOWN_FAULTS)
    if unknown:
        raise UnknownFaultError(f"{FAULT_VARIABLE} names unknown faults: {', '.join(unknown)}")
    return names


def is_injected(fault: str) -> bool:
    """Whether `fault` is switched on in this process."""
    return fault in requested_faults()
