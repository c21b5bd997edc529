"""Run as a program: what the hooks do to whole processes.

Imports SGLang once, then plays each arm in a forked child of its own. Prints one JSON object: arm -> result. A
result is what the arm returned, or ``{"exit": status, "stderr": text}`` when it ended its process, or
``{"error": text}`` when it raised ``LedgerError`` or ``ValueError``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import multiprocessing
import os
import pickle
import sys
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

MODULES = (
    "sglang.srt.server_args",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.scheduler",
    "sglang.srt.mem_cache.unified_radix_cache",
    "sglang.srt.entrypoints.engine",
)
FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property, type)
ARMS: dict[str, Callable[[], Any]] = {}


def arm(play: Callable[[], Any]) -> Callable[[], Any]:
    """Add a function to the arms, under its name."""
    ARMS[play.__name__] = play
    return play


def load() -> None:
    """What SGLang does first in every process."""
    from sglang.srt.plugins import load_plugins

    load_plugins()


def arguments(*flags: str) -> Any:
    """Parsed arguments as the launcher gets them. The model is not looked at."""
    from sglang.srt.server_args import prepare_server_args

    return prepare_server_args(["--model-path", "dummy", "--device", "cpu", "--pp-size", "2", *flags])


def hooked_launcher() -> Any:
    """A launcher with --wavepp, right before its first child."""
    load()
    server_args = arguments("--wavepp", "--chunked-prefill-size", "256")
    server_args.resolve_once()
    from sgl_patches import launch

    launch.check_resolved(server_args)
    return server_args


def snapshot() -> dict[str, Any]:
    """Functions, classes and members of classes in the loaded modules of SGLang, by the place where each is found."""
    seen: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or not name.startswith("sglang."):
            continue
        for attribute, value in list(vars(module).items()):
            if not isinstance(value, FUNCTIONS):
                continue
            seen[f"{name}.{attribute}"] = value
            if isinstance(value, type) and value.__module__ == name:
                members = (
                    (key, member) for key, member in vars(value).items() if isinstance(member, FUNCTIONS)
                )
                seen.update({f"{name}.{attribute}.{key}": member for key, member in members})
    return seen


def changes() -> dict[str, Any]:
    """Load the plugins and say what differs afterwards."""
    before = snapshot()
    codes = {name: getattr(value, "__code__", None) for name, value in before.items()}
    load()
    after = snapshot()
    changed = [
        name
        for name, value in before.items()
        if after.get(name) is not value or getattr(value, "__code__", None) is not codes[name]
    ]
    from sgl_patches import applied

    return {"changed": sorted(changed), "targets": applied.targets(), "missing": applied.missing()}


@arm
def stock() -> Any:
    return changes()


@arm
def stock_with_another_release() -> Any:
    from sgl_patches import ledger

    ledger.verify.__kwdefaults__["patches"] = [_moved(patch) for patch in ledger.LEDGER]
    return changes()


@arm
def cpu() -> Any:
    from sglang.srt import platforms

    os.environ["SGLANG_PLATFORM"] = "wavepp_cpu"
    platforms._current_platform = None
    return changes()


def watched_names() -> list[str]:
    """What the launcher of a server with two stages calls its children."""
    from sglang.srt import runtime_context
    from sglang.srt.entrypoints import engine
    from sglang.srt.utils.watchdog import SubprocessWatchdog

    layout = types.SimpleNamespace(node_rank=0, nnodes=1, pp_size=2, tp_size=1)
    runtime_context.get_parallel = engine.get_parallel = lambda: layout
    watchdog = SubprocessWatchdog(processes=[], process_names=["scheduler_0", "scheduler_1", "detokenizer"])
    names: list[str] = watchdog._names
    return names


@arm
def launcher() -> Any:
    from sglang.srt.managers import schedule_batch, scheduler

    from sgl_patches import applied, launch, radix_cache
    from sglang_wavepp.settings.of import settings_of

    os.environ[launch.CRASH_DIAGNOSTICS[1]] = "1"
    stock_scheduler, stock_prefix = scheduler.Scheduler, schedule_batch.Req._compute_max_prefix_len
    server_args = hooked_launcher()
    overridden = [name for name in vars(scheduler.Scheduler) if name in dir(stock_scheduler)]
    request = types.SimpleNamespace(dllm_config=None, return_logprob=False, is_dllm=lambda: False)
    bounds = [schedule_batch.Req._compute_max_prefix_len(request, 100)]
    for endpoint in (64, 256):
        request.wavepp_endpoint = endpoint
        bounds.append(schedule_batch.Req._compute_max_prefix_len(request, 100))
    return {
        "settings": settings_of(server_args) is not None,
        "depth": server_args.pp_async_batch_depth,
        "backend": [server_args.radix_cache_backend, radix_cache.is_registered()],
        "overlap": os.environ["SGLANG_PP_COMM_OVERLAP"],
        "crash_diagnostics": [os.environ[name] for name in launch.CRASH_DIAGNOSTICS],
        "targets": applied.targets(),
        "watched": watched_names(),
        "subclass": scheduler.Scheduler is not stock_scheduler
        and issubclass(scheduler.Scheduler, stock_scheduler),
        "overridden": sorted(overridden),
        "prefix": [stock_prefix is not schedule_batch.Req._compute_max_prefix_len, bounds],
        "missing": applied.missing(),
        "server_info": {k: v for k, v in server_args.resolved_dict().items() if k.startswith("wavepp")},
    }


@arm
def spawned_child() -> Any:
    from sglang.srt.managers import scheduler

    load()
    return _in_spawned_child(scheduler.run_scheduler_process)


@arm
def spawned_child_without_a_scheduler() -> Any:
    load()
    return _in_spawned_child(None)


@arm
def copied_in_the_launcher() -> Any:
    import copy

    load()
    copy.deepcopy(arguments("--wavepp"))
    return _is_ours()


@arm
def child_of_a_moved_release() -> Any:
    from sgl_patches import ledger

    load()
    sent = pickle.dumps(arguments("--wavepp"))
    ledger.verify.__kwdefaults__["patches"] = [_moved(patch) for patch in ledger.LEDGER]
    sender = os.getpid()
    os.getpid = lambda: sender + 1
    return str(pickle.loads(sent))


@arm
def hook_was_lost() -> Any:
    from sglang.srt.managers import schedule_batch, scheduler

    stock_prefix = schedule_batch.Req._compute_max_prefix_len
    server_args = hooked_launcher()
    schedule_batch.Req._compute_max_prefix_len = stock_prefix
    return str(scheduler.configure_scheduler_process(server_args, 0))


@arm
def scheduler_was_replaced_again() -> Any:
    from sglang.srt.managers import scheduler

    stock_scheduler = scheduler.Scheduler
    server_args = hooked_launcher()
    scheduler.Scheduler = stock_scheduler
    return str(scheduler.configure_scheduler_process(server_args, 0))


@arm
def hook_does_not_apply() -> Any:
    from sglang.srt.plugins.hook_registry import HookRegistry

    load()
    HookRegistry.apply_hooks = lambda: None
    return str(arguments("--wavepp"))


@arm
def scheduler_without_any_hook() -> Any:
    from sgl_patches import entry

    load()
    return str(entry.require_hooks())


@arm
def stock_server_after_a_wavepp_server() -> Any:
    from sglang.srt.managers import scheduler

    hooked_launcher()
    return str(scheduler.configure_scheduler_process(arguments(), 0))


@arm
def engine_keywords() -> Any:
    from sglang.srt.entrypoints.engine import Engine

    from sglang_wavepp.settings.of import settings_of

    load()
    plain = Engine.server_args_class(model_path="dummy")
    asked = Engine.server_args_class(model_path="dummy", pp_size=2, wavepp=True, wavepp_max_wave_tokens=96)
    settings = settings_of(asked)
    try:
        Engine.server_args_class(model_path="dummy", pp_size=2, wavepp=True, wavepp_planner="best")
    except ValueError as refusal:
        return [settings_of(plain) is None, settings and settings.max_wave_tokens, str(refusal)]
    return None


@arm
def environment_only() -> Any:
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    from sgl_patches import launch
    from sglang_wavepp.settings.of import settings_of

    os.environ.update(
        {"SGLANG_WAVEPP": "1", "SGLANG_WAVEPP_PLANNER": "supply", "SGLANG_WAVEPP_PIPELINE_FILLS": "3"}
    )
    server_args = ServerArgs(model_path="dummy", device="cpu", pp_size=2, chunked_prefill_size=256)
    server_args.resolve_once()
    load()
    launch.check_resolved(server_args)
    settings = settings_of(server_args)
    cfg = resolving_view(server_args)
    return [settings and settings.pipeline_fills, cfg.pp_async_batch_depth, cfg.radix_cache_backend]


@arm
def refused_after_resolution() -> Any:
    from sglang.srt.arg_groups.overrides import declare_resolution

    load()
    server_args = arguments("--wavepp")
    server_args.resolve_once()
    declare_resolution(server_args, "what a model's default might do", disable_radix_cache=True)
    return str(server_args.check_server_args())


def _in_spawned_child(first: Any) -> Any:
    """Send arguments with --wavepp to a spawned process, after `first` as SGLang does, and ask what it became."""
    reader, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)
    sent = arguments("--wavepp", "--wavepp-trace", "t.json")
    child = multiprocessing.get_context("spawn").Process(target=report_child, args=(first, sent, writer))
    child.start()
    writer.close()
    result = reader.recv()
    child.join()
    return result


def report_child(first: Any, server_args: Any, pipe: Connection) -> None:
    """In a spawned child: say which hooks were in place before any code of the child ran."""
    from sgl_patches import applied
    from sglang_wavepp.settings.of import settings_of

    settings = settings_of(server_args)
    found = {"trace": settings and settings.trace, "targets": applied.targets(), "missing": applied.missing()}
    pipe.send(found | {"scheduler": "sglang.srt.managers.scheduler" in sys.modules})


def _is_ours() -> dict[str, Any]:
    from sgl_patches import applied
    from sgl_patches.scheduler import SCHEDULER

    return {"hooked": SCHEDULER in applied.targets()}


def _moved(patch: Any) -> Any:
    from dataclasses import replace

    return replace(patch, fingerprint="0" * 16)


def play(pipe: Connection, name: str) -> None:
    """In a child: play one arm and send its result."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            result = ARMS[name]()
    except SystemExit as ended:
        result = {"exit": ended.code, "stderr": said.getvalue()}
    except (RuntimeError, ValueError) as error:
        result = {"error": str(error)}
    pipe.send(result)


def main() -> None:
    """Import, then play all arms."""
    for name in MODULES:
        importlib.import_module(name)
    found = {}
    fork = multiprocessing.get_context("fork")
    for name in ARMS:
        reader, writer = fork.Pipe(duplex=False)
        child = fork.Process(target=play, args=(writer, name))
        child.start()
        writer.close()
        try:
            found[name] = reader.recv()
        except EOFError:
            found[name] = {"error": "the child died, see above"}
        child.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
