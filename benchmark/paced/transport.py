"""Ready times travel with activations and results: through WavePP's links and through stock SGLang's own calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from benchmark.paced.forwards import Pace
from benchmark.paced.streams import PacedEvent, PacedStream, current_stream

READY = "__ready_time__"
"""In a dict of tensors between stock SGLang's stages; what is no tensor travels in its metadata."""
HIDDEN_STATES = "hidden_states"

_GROUP = "sglang.srt.distributed.parallel_state.GroupCoordinator."
_LINK = "sglang_wavepp.plane.activation_link."


def install(pace: Pace) -> None:
    """Hook both ways of travelling; a server uses one of them."""
    _install_stock(pace)
    _install_wavepp(pace)


def _install_stock(pace: Pace) -> None:
    def send(original: Callable[..., Any], group: Any, tensor_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return original(group, {**tensor_dict, READY: current_stream().tail}, *args, **kwargs)

    def receive(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = original(group, *args, **kwargs)
        if isinstance(tensors, dict) and READY in tensors:
            ready = tensors.pop(READY)
            if HIDDEN_STATES in tensors:
                ready += pace.model.transfer(tensors[HIDDEN_STATES].shape[0])
                pace.ready = ready
            current_stream().wait_until(ready)
        return tensors

    def own_stream(result: Any, scheduler: Any) -> None:
        if pace.model.own_stream:
            scheduler.pp_comm_stream = PacedStream()
            scheduler.pp_comm_stream_ctx = scheduler.device_module.stream(scheduler.pp_comm_stream)

    HookRegistry.register(f"{_GROUP}send_tensor_dict", send, HookType.AROUND)
    HookRegistry.register(f"{_GROUP}recv_tensor_dict", receive, HookType.AROUND)
    loop_state = "sglang.srt.managers.scheduler_pp_mixin.SchedulerPPMixin.init_pp_loop_state"
    HookRegistry.register(loop_state, own_stream, HookType.AFTER)


def _install_wavepp(pace: Pace) -> None:
    def send(original: Callable[..., Any], link: Any, *args: Any, launched: PacedEvent, **kwargs: Any) -> Any:
        return original(link, *args, launched=launched, **{**kwargs, "ready_time": launched.ready_time})

    def receive(original: Callable[..., Any], link: Any) -> Any:
        activation = original(link)
        if activation is None or activation.ready_time is None:
            return activation
        moment = activation.ready_time + pace.model.transfer(activation.tensors[HIDDEN_STATES].shape[0])
        # As on CUDA, where the event marks the end of the receive.
        return replace(activation, ready=PacedEvent.at(moment))

    def wait(original: Callable[..., Any], activation: Any) -> None:
        original(activation)
        if activation.ready is not None:
            pace.ready = activation.ready.ready_time

    def sampled(
        original: Callable[..., Any], stage: Any, flight: Any, result: Any, launched: PacedEvent
    ) -> Any:
        # As on CUDA, where the ids reach the host behind the forward.
        return replace(original(stage, flight, result, launched), copied=launched)

    def reporter(scheduler: Any, links: Any, fail: Any) -> Any:
        from sglang_wavepp.executor.reporter import ThreadedReporter

        return None if links.result_sender is None else ThreadedReporter(links.result_sender, fail)

    HookRegistry.register(f"{_LINK}ActivationSender.send", send, HookType.AROUND)
    HookRegistry.register(f"{_LINK}ActivationReceiver.receive", receive, HookType.AROUND)
    HookRegistry.register(f"{_LINK}Activation.wait", wait, HookType.AROUND)
    HookRegistry.register("sglang_wavepp.executor.stage.Stage._sampled", sampled, HookType.AROUND)
    HookRegistry.register("sglang_wavepp.executor.assembly._reporter", reporter, HookType.REPLACE)
