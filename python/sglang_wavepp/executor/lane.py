"""Decode lanes: the batches that decode, and the requests that join them.

Every rank keeps the same lanes, because requests join, leave and decode only by rank 0's commands.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from sglang_wavepp.plane.messages import NO_LANE


def empty_batch() -> ScheduleBatch:
    """A batch without requests."""
    return ScheduleBatch(reqs=[], batch_is_full=False)


@dataclass(slots=True)
class Lane:
    """One decode batch.

    Attributes:
        batch: requests that decode; touched only while no wave of the lane is in flight.
        joining: parts of finished prefill batches, in the order of their results.
        in_flight: a wave of this lane is between launch and result.
    """

    batch: Any = field(default_factory=empty_batch)
    joining: list[Any] = field(default_factory=list)
    in_flight: bool = False

    def requests(self) -> list[Any]:
        """Requests of the lane that still want tokens, in the order in which the next wave decodes them."""
        members = [*self.batch.reqs, *(req for part in self.joining for req in part.reqs)]
        return [req for req in members if not req.finished()]

    def gather(self) -> Any:
        """Let the waiting parts join and the finished requests leave; returns the batch to decode."""
        self.batch.filter_batch()
        for part in self.joining:
            part.filter_batch()
            if part.is_empty():
                continue
            if self.batch.is_empty():
                self.batch = part
            else:
                self.batch.merge_batch(part)
        self.joining.clear()
        return self.batch


def split_by_lane(batch: ScheduleBatch, lanes: tuple[int, ...]) -> dict[int, ScheduleBatch]:
    """Cut a finished prefill batch into the parts that join each lane.

    Args:
        batch: the batch; it is consumed.
        lanes: the lane of each request of the batch, `NO_LANE` for those that end here.

    Returns:
        The part of each lane that gets one. Parts share no mutable sampling state.
    """
    if len(lanes) != len(batch.reqs):
        raise RuntimeError(f"{len(lanes)} lanes for {len(batch.reqs)} requests")
    keep: dict[int, list[int]] = {}
    for index, (req, lane) in enumerate(zip(batch.reqs, lanes, strict=True)):
        if lane != NO_LANE and not req.finished():
            keep.setdefault(lane, []).append(index)
    if len(keep) == 1:
        ((lane, indices),) = keep.items()
        batch.filter_batch(keep_indices=indices)
        return {lane: batch}
    parts: dict[int, ScheduleBatch] = {}
    for lane, indices in keep.items():
        part = copy.copy(batch)
        # Filtering changes sampling state in place, so each part needs one of its own. Before the first decode step
        # it holds nothing that can't be rebuilt from the requests.
        part.sampling_info = SamplingBatchInfo.from_schedule_batch(part, part.model_config.vocab_size)
        part.filter_batch(keep_indices=indices)
        parts[lane] = part
    return parts
