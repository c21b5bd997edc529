import threading
from typing import Any

import pytest
import torch

from sglang_wavepp.executor.reporter import InlineReporter, Sampled, ThreadedReporter
from sglang_wavepp.plane.messages import WaveResult


class Recorder:
    """Stands for the result link."""

    def __init__(self) -> None:
        self.sent: list[WaveResult] = []
        self.threads: set[str] = set()

    def send(self, result: WaveResult) -> None:
        self.sent.append(result)
        self.threads.add(threading.current_thread().name)


class Copy:
    """Stands for the event behind a device copy: the ids are there when it has passed."""

    def __init__(self, token_ids: torch.Tensor, ids: list[int]) -> None:
        self.passed = threading.Event()
        self._fill = lambda: token_ids.copy_(torch.tensor(ids))

    def finish(self) -> None:
        self._fill()
        self.passed.set()

    def synchronize(self) -> None:
        assert self.passed.wait(10)


def sampled(wave: int, ids: list[int]) -> tuple[Sampled, Copy]:
    on_host = torch.full((len(ids),), -1, dtype=torch.int64)
    copy = Copy(on_host, ids)
    return Sampled(wave=wave, token_ids=on_host, logprobs=None, copied=copy), copy


def test_on_the_cpu_a_result_is_sent_at_once_from_the_loop() -> None:
    link: Any = Recorder()
    reporter = InlineReporter(link)
    reporter.report(Sampled(wave=3, token_ids=torch.tensor([5, 7]), logprobs=None, copied=None))
    assert link.sent == [WaveResult(wave=3, token_ids=(5, 7), logprobs=None)]
    assert link.threads == {threading.current_thread().name}


def test_on_a_device_results_leave_in_launch_order_after_their_copies() -> None:
    link: Any = Recorder()
    reporter = ThreadedReporter(link, on_failure=lambda error: pytest.fail(str(error)))
    (first, first_copy), (second, second_copy) = sampled(1, [10]), sampled(2, [20])
    reporter.report(first)
    reporter.report(second)
    second_copy.finish()
    assert link.sent == []
    first_copy.finish()
    reporter.close()
    assert [(result.wave, result.token_ids) for result in link.sent] == [(1, (10,)), (2, (20,))]
    assert link.threads == {"RESULT"}


def test_a_failure_of_the_thread_is_told() -> None:
    class Broken:
        def send(self, result: WaveResult) -> None:
            raise OSError("link is down")

    told: list[BaseException] = []
    link: Any = Broken()
    reporter = ThreadedReporter(link, on_failure=told.append)
    reporter.report(Sampled(wave=1, token_ids=torch.tensor([1]), logprobs=None, copied=None))
    reporter.close()
    assert [str(error) for error in told] == ["link is down"]
