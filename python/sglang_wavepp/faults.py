"""Fault injection for tests. Switched by the environment only, so that no flag can turn it on by mistake.

``SGLANG_WAVEPP_FAULT`` holds a comma-separated list of faults, each a name and its whole numbers, joined by colons:

- ``zero_snapshot``: recurrent states are recorded as zeros, so that every prefix hit on them restores a wrong
  state. The negative control of the comparison tests.
- ``evict_cache:RANK:WAVES``: the rank drops half of what it could evict after every so many results.
- ``flush_cache:RANK:WAVES``: the rank drops everything that it can evict after every so many results.
- ``pool_tokens:RANK:TOKENS``: the rank's KV pool holds so many tokens, in whole pages, less than the others'.
- ``slow_grammar:RANK:MILLISECONDS``: the rank takes so much longer to compile a grammar.
"""

from __future__ import annotations

import os

FAULT_VARIABLE = "SGLANG_WAVEPP_FAULT"
ZERO_SNAPSHOT = "zero_snapshot"
EVICT_CACHE = "evict_cache"
FLUSH_CACHE = "flush_cache"
POOL_TOKENS = "pool_tokens"
SLOW_GRAMMAR = "slow_grammar"
_NUMBERS = {ZERO_SNAPSHOT: 0, EVICT_CACHE: 2, FLUSH_CACHE: 2, POOL_TOKENS: 2, SLOW_GRAMMAR: 2}
KNOWN_FAULTS = frozenset(_NUMBERS)


class UnknownFaultError(ValueError):
    """The environment names a fault that does not exist, so a test would silently check nothing."""


def requested_faults() -> dict[str, tuple[int, ...]]:
    """Faults that the environment switches on, with their numbers.

    Raises:
        UnknownFaultError: a name is not in ``KNOWN_FAULTS``, or its numbers are not those that it needs.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in os.environ.get(FAULT_VARIABLE, "").split(","):
        name, *numbers = text.strip().split(":")
        if not name and not numbers:
            continue
        if name not in KNOWN_FAULTS:
            raise UnknownFaultError(f"{FAULT_VARIABLE} names an unknown fault: {name!r}")
        if len(numbers) != _NUMBERS[name] or not all(number.isdecimal() for number in numbers):
            raise UnknownFaultError(
                f"{FAULT_VARIABLE}: {name} needs {_NUMBERS[name]} whole numbers, got {text!r}"
            )
        found[name] = tuple(int(number) for number in numbers)
    return found


def is_injected(fault: str) -> bool:
    """Whether `fault` is switched on in this process."""
    return fault in requested_faults()


def number_for_rank(fault: str, rank: int) -> int | None:
    """The number of a fault that concerns one rank, None when it isn't switched on for `rank`."""
    numbers = requested_faults().get(fault)
    return None if numbers is None or numbers[0] != rank else numbers[1]
