"""Tells rank 0 what the last stage sampled.

On a GPU the ids of a wave exist when its forward has run, and waiting for that must not hold up the LOOP or the
interpreter. So there a thread of its own waits for each wave's copy to the host and sends the result. On the CPU the
forward has already run when it returns, and the result is sent at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sglang_wavepp.plane import logprobs
from sglang_wavepp.plane.messages import WaveResult
from sglang_wavepp.plane.result_link import ResultSender


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a wave's forward left on the device.

    Attributes:
        wave: number of the wave.
        token_ids: ids, one per request, on the host once `copied` has passed.
        logprobs: SGLang's logprob fields by name, None when nobody asked.
        copied: event after which the tensors may be read on the host, None when they may be read now.
    """

    wave: int
    token_ids: torch.Tensor
    logprobs: dict[str, Any] | None
    copied: Any | None

    def result(self) -> WaveResult:
        """Wait for the copy, and say what was sampled."""
        if self.copied is not None:
            self.copied.synchronize()
        packed = None if self.logprobs is None else logprobs.pack(self.logprobs)
        return WaveResult(wave=self.wave, token_ids=tuple(self.token_ids.tolist()), logprobs=packed)


class InlineReporter:
    """Sends a result from the LOOP's own thread."""

    def __init__(self, sender: ResultSender) -> None:
        self._sender = sender

    def report(self, sampled: Sampled) -> None:
        """Send what a wave sampled."""
        self._sender.send(sampled.result())

    def close(self) -> None:
        """Nothing is left to send."""


class ThreadedReporter:
    """Waits for device copies on a thread named RESULT and sends the results in launch order.

    Args:
        sender: used by the thread alone from now on.
        on_failure: called with the exception when the thread can't go on.
    """

    def __init__(self, sender: ResultSender, on_failure: Callable[[BaseException], None]) -> None:
        self._sender = sender
        self._on_failure = on_failure
        self._waiting: queue.SimpleQueue[Sampled | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="RESULT", daemon=True)
        self._thread.start()

    def report(self, sampled: Sampled) -> None:
        """Send what a wave sampled as soon as it has reached the host."""
        self._waiting.put(sampled)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._waiting.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            while (sampled := self._waiting.get()) is not None:
                self._sender.send(sampled.result())
        except BaseException as error:  # the thread's only way to tell anybody
            self._on_failure(error)


Reporter = InlineReporter | ThreadedReporter
