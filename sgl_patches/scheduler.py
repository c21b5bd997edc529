"""Hooks on ``sglang.srt.managers.scheduler``: WavePP's scheduler in the place of SGLang's."""

from __future__ import annotations

from typing import Any

from sgl_patches import applied, launch
from sgl_patches.patch import Kind, NeededBy, Patch
from sglang_wavepp.settings.of import settings_of

MODULE = "sglang.srt.managers.scheduler"
SCHEDULER = f"{MODULE}.Scheduler"
CONFIGURE = f"{MODULE}.configure_scheduler_process"


def _override(
    method: str, why: str, breaks_without: str, fingerprint: str, defined_in: str | None = None
) -> Patch:
    return Patch(
        target=f"{SCHEDULER}.{method}",
        kind=Kind.OVERRIDE,
        why=why,
        breaks_without=breaks_without,
        fingerprint=fingerprint,
        needed_by=NeededBy.WAVEPP,
        source=None if defined_in is None else f"{defined_in}.{method}",
    )


PATCHES = (
    Patch(
        target=SCHEDULER,
        kind=Kind.SUBCLASS,
        why="runs WavePP's executor loop, admission thread and links in a scheduler process",
        breaks_without="the server runs SGLang's own pipeline loop although WavePP was asked for",
        fingerprint="ee01846e8cd49922",
        needed_by=NeededBy.WAVEPP,
        source=f"{SCHEDULER}.__init__",
    ),
    Patch(
        target=CONFIGURE,
        kind=Kind.BEFORE,
        why="runs in every scheduler process after all plugins: the last place to see that each hook is in place and "
        "that nobody replaced the scheduler again",
        breaks_without="a scheduler process whose hooks were lost serves as stock SGLang, and the ranks disagree",
        fingerprint="38481d499e912e45",
        needed_by=NeededBy.WAVEPP | NeededBy.CPU,
    ),
    _override(
        "event_loop_pp",
        "the executor loop: one poller for all links instead of a tick that waits for each neighbour",
        "slow admission of one rank stalls the forwards of all",
        fingerprint="3b4720507149e751",
        defined_in="sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin",
    ),
    _override(
        "init_grammar_manager",
        "each rank compiles its own grammars; rank 0 announces a request when its grammar is ready",
        "ranks wait for grammar messages of a tick that does not exist",
        fingerprint="44c179a117e3d5a7",
    ),
    _override(
        "get_output_streamer_class",
        "hides every request that is mid-prompt, of which there can be many",
        "clients see output before their prompt was computed",
        fingerprint="8a0c53dc4cce0e15",
    ),
    _override(
        "maybe_sleep_on_idle",
        "the loop sleeps in its poller",
        "an idle rank sleeps while its links have something to read",
        fingerprint="02d6a64295e8006a",
    ),
    _override(
        "publish_load_snapshot",
        "does not publish the load with every result of a prefill",
        "nothing breaks; small waves cost more time on rank 0",
        fingerprint="db0998353104f886",
    ),
    _override(
        "process_input_requests",
        "refuses the control requests that WavePP cannot order with the waves yet",
        "a control request changes one rank only",
        fingerprint="c0e51482321b7862",
    ),
    _override(
        "_create_generation_req",
        "keeps what rank 0 must send so that the other ranks can build the same request",
        "followers do not learn of a request",
        fingerprint="49c3985d22d693f7",
    ),
    _override(
        "_add_request_to_queue",
        "hands a request to admission instead of to SGLang's own planning",
        "each rank plans by itself",
        fingerprint="4eb67ab06edd8ac8",
    ),
    _override(
        "init_req_max_new_tokens",
        "clips the output of a request by what the pools of all ranks can hold, and no shorter",
        "ranks with pools of different size admit a request for different lengths",
        fingerprint="5c701062f5b95939",
    ),
    _override(
        "abort_request",
        "aborts in order with the waves, as rank 0 decides",
        "one rank runs a wave without a request that the next one still has",
        fingerprint="9baa7e36acfb7f74",
    ),
    _override(
        "flush_cache",
        "flushes all ranks at one place of the command stream",
        "a cache is flushed under a request that another rank has admitted",
        fingerprint="fdbefa042a1ef94c",
    ),
    _override(
        "is_fully_idle",
        "counts admission and waves in flight",
        "a flush or a health check takes a busy rank for an idle one",
        fingerprint="5e5ea58c6a82e226",
    ),
    _override(
        "_collect_inflight_batches",
        "shows the waves in flight to SGLang's checks",
        "SGLang's memory check reports leaks that are requests in flight",
        fingerprint="ab5b751688a13e8e",
    ),
    _override(
        "release_host_resources",
        "closes the links when the server ends",
        "sockets and threads outlive the server's shutdown",
        fingerprint="3f6a1a7df235567d",
    ),
)


def install() -> None:
    """Hook the scheduler of this process. Imports the scheduler."""
    from sglang.srt.managers import scheduler as upstream

    from sgl_patches import entry, ledger
    from sglang_wavepp.executor.scheduler import make_wave_scheduler

    if SCHEDULER in applied.targets():
        return
    wave_scheduler = make_wave_scheduler(
        upstream.Scheduler,
        verify=entry.require_hooks,
        fingerprints=ledger.fingerprints(NeededBy.WAVEPP),
    )
    applied.add(SCHEDULER, wave_scheduler, "replace")
    install_check()


def install_check() -> None:
    """Have every scheduler process look at its hooks before it builds anything."""
    applied.add(CONFIGURE, _configure_scheduler_process, "before")


def _configure_scheduler_process(server_args: Any, *_: Any, **__: Any) -> None:
    """Runs in a scheduler process after all plugins. Ends the process when a hook is missing or one too many."""
    from sgl_patches import entry

    with launch.errors_as_one_line():
        if settings_of(server_args) is not None:
            entry.require_hooks()
        elif SCHEDULER in applied.targets():
            launch.stop(
                "this process has started a server with --wavepp before, and its children inherit WavePP's scheduler; "
                "start a server without --wavepp from a new process"
            )
        else:
            entry.require_in_place()
