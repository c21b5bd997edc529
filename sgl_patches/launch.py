"""What happens in the launching process between parsed arguments and the first child."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from sglang_wavepp.settings import refusals
from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import WaveSettings, from_values
from sglang_wavepp.settings.of import attach, is_decided, settings_of

CACHE_BACKEND = "wavepp"
COMM_OVERLAP = "SGLANG_PP_COMM_OVERLAP"
CRASH_DIAGNOSTICS = ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH")
"""SGLang's launcher takes these before it ends a server of which a rank failed. While it waits for them, up to 65 s,
the clients of all other ranks hang, so they are off unless somebody asks for them."""
_COMMAND_LINE = "_wavepp_command_line"
_ARRIVAL = "_wavepp_arrival"


def decide(server_args: Any, given: Mapping[str, object]) -> None:
    """Record on fresh arguments whether WavePP is on, and prepare them for it.

    ``given`` holds flags or keyword arguments; the environment fills the rest. Raises ``SettingsError`` for a wrong
    setting or an option that cannot be combined with WavePP, ``LedgerError`` when SGLang is not the pinned one.
    """
    settings = from_values(given)
    if settings is None:
        attach(server_args, None)
        return
    refusals.check(server_args, settings, os.environ)
    _prepare(server_args, settings)


def check_resolved(server_args: Any) -> None:
    """Check the arguments again once SGLang has resolved them, right before the first process is started.

    Arguments that were built before this plugin was loaded have not been decided on yet: for them the environment
    counts. Raises ``SettingsError`` or ``LedgerError``; on the command line ends the process with one line instead.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    from sgl_patches import entry, tokenizer, watchdog

    with errors_as_one_line(only_if=getattr(server_args, _COMMAND_LINE, False)):
        if not is_decided(server_args):
            decide(server_args, {})
        settings = settings_of(server_args)
        if settings is not None:
            refusals.check(resolving_view(server_args), settings, os.environ)
            tokenizer.install()
            watchdog.install()
            # Forked children inherit the hooks. For spawned ones this is a rehearsal whose error is easy to read.
            entry.install_in_scheduler()


def mark_command_line(server_args: Any) -> None:
    """Remember that these arguments came from a command line, where an error is one line and no traceback."""
    setattr(server_args, _COMMAND_LINE, True)


@contextmanager
def errors_as_one_line(*, only_if: bool = True) -> Iterator[None]:
    """Turn a refusal into ``error: <line>`` on stderr and exit status 2, as argparse ends."""
    from sgl_patches.ledger import LedgerError

    try:
        yield
    except (SettingsError, LedgerError) as refusal:
        if not only_if:
            raise
        stop(str(refusal))


def stop(line: str) -> NoReturn:
    """End this process with one line and status 2.

    ``SystemExit`` also passes SGLang's plugin loader, which logs and swallows every ``Exception``.
    """
    print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def _prepare(server_args: Any, settings: WaveSettings) -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution

    from sgl_patches import entry
    from sgl_patches.arrival import Arrival

    entry.install_in_launcher()
    attach(server_args, settings)
    chosen = {"pp_async_batch_depth": server_args.pp_size, "radix_cache_backend": CACHE_BACKEND}
    if hasattr(server_args, "_raw_input"):
        # Resolved before plugins were loaded: the input was copied by then, and what counts is the last declaration.
        declare_resolution(server_args, "wavepp", **chosen)
    else:
        for name, value in chosen.items():
            setattr(server_args, name, value)
    setattr(server_args, _ARRIVAL, Arrival())
    os.environ.setdefault(COMM_OVERLAP, "1")
    for name in CRASH_DIAGNOSTICS:
        os.environ.setdefault(name, "0")
