"""WavePP's settings: one frozen object, filled from the command line, keyword arguments or the environment."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from sglang_wavepp.settings.errors import SettingsError

ENV_SWITCH = "SGLANG_WAVEPP"
ADMISSION_CHOICES = ("lease", "two-walk", "inline")
PLANNER_CHOICES = ("mpu", "supply", "static")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class WaveSettings:
    """What the user asked of WavePP. Its presence on a ``ServerArgs`` means that WavePP is on.

    ``max_wave_tokens``, ``min_wave_tokens``, ``snapshot_period`` and ``decode_reserve`` are counted in tokens,
    ``rounds_timeout`` in seconds, ``progress_deadline_ms`` in milliseconds. Building one with a value out of
    range raises ``SettingsError``.
    """

    admission: str = "lease"
    planner: str = "mpu"
    max_wave_tokens: int | None = None
    min_wave_tokens: int | None = None
    pipeline_fills: int = 2
    snapshot_period: int | None = None
    hint_block_size: int = 64
    rounds_timeout: float = 30.0
    progress_deadline_ms: float = 20.0
    decode_reserve: int | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        _require_choice("admission", self.admission, ADMISSION_CHOICES)
        _require_choice("planner", self.planner, PLANNER_CHOICES)
        for name in ("max_wave_tokens", "min_wave_tokens", "snapshot_period", "decode_reserve"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{flag_name(name)} must be at least 1 token, got {value}")
        for name in ("pipeline_fills", "hint_block_size"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{flag_name(name)} must be at least 1, got {getattr(self, name)}")
        for name in ("rounds_timeout", "progress_deadline_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise SettingsError(f"{flag_name(name)} must be a positive, finite number, got {value}")
        if self.rounds_timeout < 1.0:
            raise SettingsError(
                f"--wavepp-rounds-timeout must be at least 1 second, got {self.rounds_timeout:g}; "
                "a shorter silence is normal under load"
            )
        if (self.min_wave_tokens or 0) > (self.max_wave_tokens or math.inf):
            raise SettingsError(
                f"--wavepp-min-wave-tokens ({self.min_wave_tokens}) must not exceed "
                f"--wavepp-max-wave-tokens ({self.max_wave_tokens})"
            )
        if self.pipeline_fills != WaveSettings.pipeline_fills and self.planner != "supply":
            raise SettingsError(
                f"--wavepp-pipeline-fills is read by --wavepp-planner supply alone, not by {self.planner}; leave it out"
            )
        if self.decode_reserve is not None:
            raise SettingsError(
                "--wavepp-decode-reserve follows in a later release; until then room for the whole output of a "
                "request is promised at its admission, so leave it out"
            )

    def wave_tokens(self, chunked_prefill_size: int | None) -> int:
        """Return the token budget ``M`` of one wave: ``max_wave_tokens``, else the chunked prefill size.

        Raises ``SettingsError`` when neither gives a positive number.
        """
        if self.max_wave_tokens is not None:
            return self.max_wave_tokens
        if chunked_prefill_size is None or chunked_prefill_size < 1:
            raise SettingsError(
                "--wavepp needs a wave size: set --chunked-prefill-size or --wavepp-max-wave-tokens"
            )
        return chunked_prefill_size

    def smallest_wave_tokens(self, wave_tokens: int, step: int) -> int:
        """Return the smallest wave budget ``b_min``: ``min_wave_tokens``, else 1/32 of a wave; at least a step.

        ``wave_tokens`` is the budget ``M``, ``step`` the smallest span that the cache can resume from.
        """
        wanted = wave_tokens // 32 if self.min_wave_tokens is None else self.min_wave_tokens
        return max(wanted // step * step, step)

    def as_flags(self) -> dict[str, object]:
        """Return the settings under their flag names (``wavepp``, ``wavepp_admission``, ...)."""
        return {"wavepp": True, **{keyword(f.name): getattr(self, f.name) for f in fields(self)}}

    def to_env(self) -> dict[str, str]:
        """Return the environment variables from which ``from_env`` builds an equal object."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {env_name(name): str(value) for name, value in values.items() if value is not None}
        return {ENV_SWITCH: "1", **given}


def from_env(environ: Mapping[str, str] | None = None) -> WaveSettings | None:
    """Build the settings from ``SGLANG_WAVEPP*`` variables alone; None when the switch is off."""
    return from_values({}, environ)


def from_values(given: Mapping[str, object], environ: Mapping[str, str] | None = None) -> WaveSettings | None:
    """Build the settings from flags or keyword arguments, the environment filling what was not given.

    ``given`` maps ``wavepp`` and ``wavepp_<field>`` to a value of the field's type or its text; a missing key or
    None counts as not given. Returns None when WavePP was not asked for. Raises ``SettingsError`` for a value that
    cannot be read, is out of range or belongs to a later release, and for a ``--wavepp-*`` flag without
    ``--wavepp``.
    """
    env = os.environ if environ is None else environ
    asked = given.get("wavepp")
    on = (
        _read_switch(ENV_SWITCH, env.get(ENV_SWITCH, ""))
        if asked is None
        else _read_switch("--wavepp", asked)
    )
    named = {
        f.name: given[keyword(f.name)] for f in fields(WaveSettings) if given.get(keyword(f.name)) is not None
    }
    if not on:
        if named:
            raise SettingsError(
                f"{flag_name(next(iter(named)))} needs --wavepp; add --wavepp or leave it out"
            )
        return None
    read: dict[str, object] = {}
    for field in fields(WaveSettings):
        if field.name in named:
            read[field.name] = _READERS[field.name](flag_name(field.name), named[field.name])
        elif env.get(env_name(field.name), ""):
            read[field.name] = _READERS[field.name](env_name(field.name), env[env_name(field.name)])
    return WaveSettings(**read)  # type: ignore[arg-type]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the WavePP group to SGLang's parser.

    Values stay text here and are read in ``from_values``: argparse would print SGLang's whole usage text in
    front of its error.
    """
    group = parser.add_argument_group(
        "WavePP",
        "Pipeline-parallel prefill with admission off the executor loop. Needs --pp-size of 2 or more. "
        "Each flag can also be given as an environment variable, e.g. SGLANG_WAVEPP=1, SGLANG_WAVEPP_TRACE=trace.",
    )
    group.add_argument(
        "--wavepp",
        action="store_true",
        default=None,
        help="Serve with WavePP. Without it SGLang runs unchanged.",
    )
    for name, metavar, text in _HELP:
        group.add_argument(
            flag_name(name), dest=keyword(name), type=str, default=None, metavar=metavar, help=text
        )


def keyword(field: str) -> str:
    """Return the keyword argument and argparse destination of a field."""
    return f"wavepp_{field}"


def flag_name(field: str) -> str:
    """Return the command-line flag of a field."""
    return "--wavepp-" + field.replace("_", "-")


def env_name(field: str) -> str:
    """Return the environment variable of a field."""
    return f"{ENV_SWITCH}_{field.upper()}"


KEYWORDS = ("wavepp", *(keyword(f.name) for f in fields(WaveSettings)))


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{flag_name(name)} must be one of {', '.join(choices)}, got {value!r}")


def _read_switch(name: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise SettingsError(f"{name} must be 1 or 0, got {value!r}")


def _read_int(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value))
    except ValueError:
        raise SettingsError(f"{name} must be a whole number, got {value!r}") from None


def _read_float(name: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise SettingsError(f"{name} must be a number, got {value!r}") from None


def _read_text(name: str, value: object) -> str:
    text = str(value)
    if not text.strip():
        raise SettingsError(f"{name} must not be empty")
    return text


_READERS: dict[str, Callable[[str, object], object]] = {
    "admission": _read_text,
    "planner": _read_text,
    "max_wave_tokens": _read_int,
    "min_wave_tokens": _read_int,
    "pipeline_fills": _read_int,
    "snapshot_period": _read_int,
    "hint_block_size": _read_int,
    "rounds_timeout": _read_float,
    "progress_deadline_ms": _read_float,
    "decode_reserve": _read_int,
    "trace": _read_text,
}

_HELP: tuple[tuple[str, str, str], ...] = (
    (
        "admission",
        "{lease,two-walk,inline}",
        "How the ranks agree where a request starts. lease (default): on the admission thread, from an index of cached "
        "blocks, with a lease on the prefix and an escrow for the rest. two-walk: the same without index and escrow, "
        "each rank walks its cache twice. inline: two-walk inside the executor loop, as a baseline.",
    ),
    (
        "planner",
        "{mpu,supply,static}",
        "How the size of a wave is chosen. mpu (default): so that all stages have work, from what is left to compute "
        "and how long waves take. supply: from what is left to compute alone, in halves of --wavepp-max-wave-tokens. "
        "static: always up to --wavepp-max-wave-tokens.",
    ),
    (
        "max_wave_tokens",
        "TOKENS",
        "Most prefill tokens in one wave. Default: --chunked-prefill-size.",
    ),
    (
        "min_wave_tokens",
        "TOKENS",
        "Smallest wave budget that the planner may choose. Default: 1/32 of --wavepp-max-wave-tokens, at least "
        "the smallest span that the cache can resume from. The static planner does not use it.",
    ),
    (
        "pipeline_fills",
        "N",
        "How many times over the supply planner wants the pipeline filled with waves of the known work (default 2). "
        "With other planners another value than that is refused.",
    ),
    (
        "snapshot_period",
        "TOKENS",
        "How far apart the positions are at which a prompt is published to the cache while it is computed, however "
        "small the waves; hybrid models keep a recurrent snapshot at each. Where prompts part and where they end there "
        "is one anyway. Default: --wavepp-max-wave-tokens.",
    ),
    (
        "hint_block_size",
        "TOKENS",
        "Granularity of the hints about reusable prefixes (default 64). Used by --wavepp-admission lease.",
    ),
    (
        "rounds_timeout",
        "SECONDS",
        "A rank that is silent for this long is named in the log and the server ends (default 30).",
    ),
    (
        "progress_deadline_ms",
        "MS",
        "Longest time that a planner may hold back a small wave to let it fill (default 20). "
        "The static planner never holds a wave back.",
    ),
    (
        "decode_reserve",
        "TOKENS",
        "Output tokens reserved per request at admission, extended while it decodes. Follows in a later release; "
        "until then the whole output is reserved.",
    ),
    (
        "trace",
        "DIR",
        "Folder for a timeline of waves, spans, rounds and admissions of all ranks. python -m "
        "sglang_wavepp.telemetry.merge DIR turns it into Chrome/Perfetto trace events and an HTML picture.",
    ),
)
