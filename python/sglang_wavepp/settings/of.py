"""Where the settings live on SGLang's ``ServerArgs``, and how to read them there."""

from __future__ import annotations

from typing import Protocol, cast

from sglang_wavepp.settings.flags import WaveSettings

# An underscore name that is no field: SGLang's write seal exempts it and its pickling keeps it.
ATTRIBUTE = "_wavepp"


class HasAttributes(Protocol):
    """Anything with a ``__dict__``, as ``ServerArgs`` has beside its fields."""

    __dict__: dict[str, object]


def attach(server_args: HasAttributes, settings: WaveSettings | None) -> None:
    """Record on ``server_args`` what was asked; None records that WavePP is off."""
    setattr(server_args, ATTRIBUTE, settings)


def settings_of(server_args: HasAttributes) -> WaveSettings | None:
    """Return the settings of ``server_args``, or None when WavePP was not asked for.

    Works in every process: the record is pickled with the arguments.
    """
    return cast("WaveSettings | None", getattr(server_args, ATTRIBUTE, None))


def is_decided(server_args: HasAttributes) -> bool:
    """Return whether somebody has already recorded whether WavePP is on (``attach`` was called)."""
    return hasattr(server_args, ATTRIBUTE)
