"""Forwards that take as long as the model says and compute nothing."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmark.paced.clock import now
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.profiling import LoopProfile
from benchmark.paced.recorder import Forward, Recorder
from benchmark.paced.streams import current_stream
from benchmark.paced.timers import Timers

TOKEN = 5
"""The token id that every forward samples."""
#: Functions of this handle are called without giving up the interpreter lock.
_LOCKED = ctypes.PyDLL(None)


@dataclass(slots=True)
class Pace:
    """The device of one process.

    Attributes:
        model: how long things take.
        recorder: gets every forward, None records nothing.
        scale_file: holds the scale as text, so that it can change between two measurements; None: as in `model`.
        profile: of the LOOP by function, None for no profile.
        ready: when the activations for the next forward are here, None when it needs none.
    """

    model: DeviceModel
    recorder: Recorder | None = None
    scale_file: Path | None = None
    timers: Timers = field(default_factory=Timers)
    profile: LoopProfile | None = None
    ready: float | None = None
    _launches: int = 0
    _scale_read: int = -1

    def forward(self, runner: Any, forward_batch: Any, *_: Any, **__: Any) -> Any:
        """In the place of ``ModelRunner.forward``: queue the wave on the current stream."""
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.model_executor.forward_batch_info import PPProxyTensors
        from sglang.srt.model_executor.model_runner import ModelRunnerOutput
        from sglang.srt.runtime_context import get_parallel

        runner.forward_pass_id += 1
        self._read_scale()
        parallel = get_parallel()
        tokens, prefixes, decode = _shape(forward_batch)
        _launch(self.model)
        launched = now()
        start, end = current_stream().enqueue(self.model.seconds(tokens, prefixes, stage=parallel.pp_rank))
        if self.recorder is not None:
            self.recorder.write(
                Forward(
                    stage=parallel.pp_rank,
                    number=self._launches,
                    launched=launched,
                    ready=self.ready,
                    start=start,
                    end=end,
                    tokens=tokens,
                    prefixes=prefixes,
                    rids=[str(rid) for rid in forward_batch.rids or ()],
                    decode=decode,
                    process_cpu=time.process_time(),
                    thread_cpu=time.thread_time(),
                    timers=self.timers.take(),
                )
            )
        if self.profile is not None:
            self.profile.wave(parallel.pp_rank)
        self._launches += 1
        self.ready = None
        output: Any
        if parallel.pp_rank == parallel.pp_size - 1:
            output = LogitsProcessorOutput(next_token_logits=torch.zeros(forward_batch.batch_size, 8))
        else:
            # Rows without content: the next stage learns how many tokens come, and no bytes are copied for them.
            output = PPProxyTensors({"hidden_states": torch.empty(sum(tokens), 0)})
        return ModelRunnerOutput(logits_output=output, can_run_graph=False)

    def sample(self, runner: Any, logits_output: Any, forward_batch: Any) -> torch.Tensor:
        """In the place of ``ModelRunner.sample``."""
        return torch.full((forward_batch.batch_size,), TOKEN, dtype=torch.int64)

    def _read_scale(self) -> None:
        if self.scale_file is None:
            return
        changed = os.stat(self.scale_file).st_mtime_ns
        if changed != self._scale_read:
            self._scale_read = changed
            self.model = replace(self.model, scale=float(self.scale_file.read_text()))


def _shape(forward_batch: Any) -> tuple[list[int], list[int], bool]:
    """By request, tokens computed and tokens before them; and whether it is a decode step."""
    if forward_batch.forward_mode.is_extend():
        return (
            [int(count) for count in forward_batch.extend_seq_lens_cpu],
            [int(count) for count in forward_batch.extend_prefix_lens_cpu],
            False,
        )
    lengths = [int(length) for length in forward_batch.seq_lens_cpu]
    return [1] * len(lengths), lengths, True


def _launch(model: DeviceModel) -> None:
    """Keep the host as long as a launch does. It sleeps: all stages share the cores of one machine here."""
    seconds = model.launch / model.scale
    if seconds <= 0:
        return
    if model.launch_holds_lock:
        _LOCKED.usleep(round(seconds * 1e6))
    else:
        time.sleep(seconds)
