"""What the plugin entry point names, and what each kind of process installs.

=====================  ==========================================================================================
process                hooks
=====================  ==========================================================================================
every one              parsing of arguments (``register``, called by SGLang's plugin loader)
on the CPU platform    the kernels, as well (``register``)
launcher, --wavepp     what checks and shows the settings (``install_in_launcher``); its end of control requests
scheduler, --wavepp    everything (``install_in_scheduler``; in the launcher as well, before it starts any)
=====================  ==========================================================================================
"""

from __future__ import annotations

import logging

from sgl_patches import (
    applied,
    cpu_kernels,
    engine,
    launch,
    ledger,
    radix_cache,
    schedule_batch,
    scheduler,
    server_args,
    tree_core,
)
from sgl_patches.ledger import LedgerError
from sgl_patches.patch import NeededBy
from sglang_wavepp.settings.flags import from_env

logger = logging.getLogger(__name__)

_asked_for_scheduler = False


def register() -> None:
    """Entry point of the plugin: called once by ``load_plugins`` in every process.

    Without ``--wavepp`` and off the CPU platform it hooks the parsing of arguments and nothing else. On an SGLang
    that is not the pinned one it does not even that, so that stock SGLang still serves; ``--wavepp`` is then an
    unknown argument. Ends the process when the CPU platform's or the environment's request cannot be met.
    """
    on_cpu = cpu_kernels.is_active()
    with launch.errors_as_one_line(only_if=on_cpu or _asked_for_scheduler):
        try:
            ledger.verify(NeededBy.ALWAYS)
        except LedgerError as moved:
            if on_cpu or _asked_for_scheduler:
                raise
            logger.error("WavePP is not available: %s", moved)
            return
    server_args.install_flags()
    engine.install_flags()
    with launch.errors_as_one_line():
        if on_cpu:
            ledger.verify(NeededBy.CPU)
            cpu_kernels.install()
        if from_env() is not None:
            server_args.install_launcher()
        if _asked_for_scheduler:
            _register_in_scheduler()


def install_in_launcher() -> None:
    """Hook a process that starts a WavePP server. Raises ``LedgerError`` when it cannot."""
    ledger.verify(NeededBy.ALWAYS | NeededBy.WAVEPP)
    server_args.install_launcher()
    applied.apply()
    require_in_place()


def install_in_scheduler() -> None:
    """Hook a process that runs, or is about to fork, a WavePP scheduler. Raises ``LedgerError`` when it cannot.

    All plugins are loaded first, so that hooks of several plugins on one target are applied together: SGLang's
    registry skips a target that it has hooked before.
    """
    from sglang.srt.plugins import load_plugins

    global _asked_for_scheduler
    _asked_for_scheduler = True
    load_plugins()
    _register_in_scheduler()
    applied.apply()
    require_hooks()


def require_hooks() -> None:
    """Refuse to go on in a scheduler process that lacks one of its hooks. Raises ``LedgerError``."""
    if scheduler.SCHEDULER not in applied.targets():
        raise LedgerError(
            "--wavepp was asked for, but this process runs SGLang's own scheduler: no hook was installed"
        )
    require_in_place()
    if not radix_cache.is_registered():
        raise LedgerError(
            f"the radix cache backend {radix_cache.BACKEND!r} is not registered in this process"
        )
    if not tree_core.is_registered():
        raise LedgerError("the indexed tree core is not registered in this process")


def require_in_place() -> None:
    """Refuse to go on when a hook that this process asked for is not in place. Raises ``LedgerError``."""
    missing = applied.missing()
    if missing:
        raise LedgerError(
            f"hook not in place: {', '.join(missing)}; see the log for why SGLang did not apply it"
        )


def _register_in_scheduler() -> None:
    ledger.verify(NeededBy.WAVEPP)
    scheduler.install()
    schedule_batch.install()
    tree_core.install()
    radix_cache.install()
