import pytest

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.simulate.chunks import SMOOTHING, ChunkSizer, StockQueue
from sglang_wavepp.simulate.workload import Job

COST = WaveCost(per_wave=8e-3, per_token=17.5e-6, per_pair=1.4e-10)


def _queue(*jobs: Job, chunk: int = 1024, sizer: ChunkSizer | None = None, most: int = 8) -> StockQueue:
    queue = StockQueue(chunk=chunk, page=64, max_requests=most, sizer=sizer)
    for number, job in enumerate(jobs):
        queue.add(number, job)
    return queue


def test_one_chunked_request_at_a_time_and_the_rest_of_a_batch_goes_to_the_next() -> None:
    queue = _queue(Job(0, 1500), Job(64, 864), Job(0, 5000))
    assert queue.form() == (PlannedSpan("0", 0, 1024),)
    assert queue.form() == (PlannedSpan("0", 1024, 476), PlannedSpan("1", 64, 512))
    assert queue.form() == (PlannedSpan("1", 576, 288), PlannedSpan("2", 0, 704))


def test_a_chunk_that_is_not_the_last_ends_on_a_page() -> None:
    queue = _queue(Job(0, 1000), Job(0, 1000))
    assert queue.form() == (PlannedSpan("0", 0, 1000),)  # 24 tokens are no page


def test_nothing_waits() -> None:
    assert _queue().form() == ()


def test_a_batch_has_limited_requests() -> None:
    assert len(_queue(*(Job(0, 10) for _ in range(5)), most=3).form()) == 3


def test_dynamic_chunks_take_as_long_as_the_first_one_but_for_the_smoothing() -> None:
    sizer = ChunkSizer(base=16384, cost=COST, page=64)
    first = COST.work(start=0, end=16384)
    assert sizer.size(0) == 16384
    for history in (16384, 65536, 131072):
        equal = COST.tokens(start=history, seconds=first)
        expected = 16384 + SMOOTHING * (equal - 16384)
        assert sizer.size(history) == pytest.approx(expected, abs=64)
        assert sizer.size(history) % 64 == 0
    assert sizer.size(10**9) == 4096


def test_without_attention_dynamic_chunking_is_off() -> None:
    assert ChunkSizer(base=4096, cost=WaveCost(0.01, 1e-5), page=64).size(10**6) == 4096


def test_only_a_batch_that_goes_on_with_a_chunked_request_has_a_predicted_size() -> None:
    sizer = ChunkSizer(base=16384, cost=COST, page=64)
    queue = _queue(Job(117_952, 131_072 + 16384), chunk=16384, sizer=sizer)
    (first,) = queue.form()
    assert first.length == 16384
    (second,) = queue.form()
    assert second.length == min(sizer.size(first.end), 131_072 + 16384 - first.end)
