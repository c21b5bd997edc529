"""Starts the ranks of a CPU server by fork, from a launcher that has imported everything they need.

SGLang spawns its processes, and each of them then imports SGLang and torch anew: that is most of the start-up
time of a small model. Forking shares those imports. It is done only where it is safe: on this platform (no device
context to break), in a launcher whose single Python thread is the one that forks, and for the processes that the
launcher itself starts. Everything else keeps SGLang's start method.

``load_plugins()`` runs once per process tree under fork, so hooks on the scheduler must be in place in the launcher
before the first child starts: that is what `before_fork` is for.
"""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

logger = logging.getLogger(__name__)

FORK_VARIABLE = "SGLANG_WAVEPP_FORK"

_LAUNCHERS = (
    "sglang.srt.entrypoints.engine.Engine._launch_scheduler_processes",
    "sglang.srt.entrypoints.engine.Engine._launch_detokenizer_subprocesses",
)

#: Imported once in the launcher, so that no child has to.
_SHARED_MODULES = (
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.tokenizer_manager",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.registry",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.layers.attention.linear.kda_backend",
    "sglang.srt.mem_cache.unified_radix_cache",
)

_before_fork: list[Callable[[], None]] = []
_installed = False
_prepared = False


def install(before_fork: Callable[[], None]) -> None:
    """Let the launcher of this process fork its children where that is safe.

    Args:
        before_fork: called in the launcher, once, after the shared modules are imported and before the first fork.
    """
    global _installed
    if not _installed:
        for target in _LAUNCHERS:
            HookRegistry.register(target, _launch, HookType.AROUND)
        os.register_at_fork(after_in_child=_reset_start_method)
        _installed = True
    _before_fork.append(before_fork)


def reason_against_fork() -> str | None:
    """Why this process must not fork its children, or None when it may."""
    if os.environ.get(FORK_VARIABLE, "1") == "0":
        return f"{FORK_VARIABLE}=0"
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        return f"other threads are running ({', '.join(sorted(others))})"
    return None


def _launch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    refusal = reason_against_fork()
    if refusal is not None:
        logger.info("Starting processes by spawn: %s", refusal)
        return original(*args, **kwargs)
    _prepare()
    # Imports may have started threads; the forked child would then hold their locks without them.
    refusal = reason_against_fork()
    if refusal is not None:
        logger.info("Starting processes by spawn: %s", refusal)
        return original(*args, **kwargs)
    # A collection writes into every object that it looks at, and each child would copy the pages of what it shares.
    gc.collect()
    gc.freeze()
    try:
        with _start_method("fork"):
            return original(*args, **kwargs)
    finally:
        gc.unfreeze()


def _prepare() -> None:
    global _prepared
    if _prepared:
        return
    for name in _SHARED_MODULES:
        importlib.import_module(name)
    for call in _before_fork:
        call()
    _prepared = True


@contextmanager
def _start_method(method: str) -> Iterator[None]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(method, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


def _reset_start_method() -> None:
    """A child inherits the launcher's choice; what it starts later must not fork, for it has threads by then."""
    if multiprocessing.get_start_method(allow_none=True) == "fork":
        multiprocessing.set_start_method("spawn", force=True)
