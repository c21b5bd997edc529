"""What the LOOP's thread spends in which function, between one forward and the next.

Wall and CPU time include what the function calls, so names overlap: `launch` holds `stage_launch`, for example.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

_SGLANG = "sglang.srt.managers."
_SCHEDULER = f"{_SGLANG}scheduler.Scheduler."
_WAVEPP = "sglang_wavepp.executor."

#: What is timed, by the name in the trace.
TARGETS = {
    "ingest": f"{_SCHEDULER}ingest_requests",
    "plan": f"{_SCHEDULER}get_next_batch_to_run",
    "send_requests": f"{_SCHEDULER}_pp_send_pyobj_to_next_stage",
    "send_activations": f"{_SCHEDULER}_pp_send_proxy_to_next_stage",
    "receive_activations": f"{_SCHEDULER}_pp_recv_proxy_tensors",
    "receive_result": f"{_SCHEDULER}_pp_recv_dict_from_prev_stage",
    "send_result": f"{_SCHEDULER}_pp_send_output_to_next_stage",
    "run_batch": f"{_SCHEDULER}run_batch",
    "process_result": f"{_SCHEDULER}process_batch_result",
    "prepare_for_extend": f"{_SGLANG}schedule_batch.ScheduleBatch.prepare_for_extend",
    "next_round_input": f"{_SGLANG}schedule_batch.Req.init_next_round_input",
    "forward_batch": "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
    "take_input": f"{_WAVEPP}leader.Leader._take_input",
    "take_admissions": f"{_WAVEPP}leader.Leader._take_admissions",
    "take_results": f"{_WAVEPP}leader.Leader._take_results",
    "launch": f"{_WAVEPP}leader.Leader._launch",
    "follow_admissions": f"{_WAVEPP}follower.Follower._take_admissions",
    "follow_messages": f"{_WAVEPP}follower.Follower._take_messages",
    "install": f"{_WAVEPP}installer.Installer.install",
    "stage_launch": f"{_WAVEPP}stage.Stage.launch_prefill",
    "stage_prepare": f"{_WAVEPP}stage.Stage._prepare",
    "stage_forward": f"{_WAVEPP}stage.Stage._forward",
    "stage_result": f"{_WAVEPP}stage.Stage.apply_result",
    "materialise": f"{_WAVEPP}stage.Stage._materialise",
    "activation_send": "sglang_wavepp.plane.activation_link.ActivationSender.send",
    "activation_receive": "sglang_wavepp.plane.activation_link.ActivationReceiver.receive",
}


class Timers:
    """Calls, wall and CPU seconds by name, of one thread: the one that made the first call of `take`."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = {}
        self._thread: int | None = None

    def around(self, name: str) -> Callable[..., Any]:
        """An AROUND hook that adds a call to `name`."""

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            wall, cpu = time.monotonic(), time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent = self._spent.setdefault(name, [0, 0.0, 0.0])
                spent[0] += 1
                spent[1] += time.monotonic() - wall
                spent[2] += time.thread_time() - cpu

        return hook

    def take(self) -> dict[str, tuple[int, float, float]]:
        """Calls, wall and CPU seconds since the last time, by name."""
        if self._thread is None:
            self._thread = threading.get_ident()
        taken = {
            name: (int(n), round(wall, 6), round(cpu, 6)) for name, (n, wall, cpu) in self._spent.items()
        }
        self._spent.clear()
        return taken


def install(timers: Timers) -> None:
    """Time all targets."""
    for name, target in TARGETS.items():
        HookRegistry.register(target, timers.around(name), HookType.AROUND)
