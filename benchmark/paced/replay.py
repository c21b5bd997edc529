"""A server's own plan through an ideal pipeline: same waves, same order, no host time and no limit to the ring."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmark.paced.analysis import rid_of
from benchmark.paced.device_model import DeviceModel
from benchmark.paced.recorder import Forward
from sglang_wavepp.simulate.arrivals import Arrivals
from sglang_wavepp.simulate.workload import Workload


def ideal_seconds(
    waves: Sequence[Forward], rids: Sequence[str], workload: Workload, model: DeviceModel, *, stages: int
) -> float:
    """From the first request to the last answer, if a wave started as soon as its requests had arrived, the stage was
    free, and the stage before had finished it.

    Clients behave as in the measurement: the next request is sent when an earlier one has ended.

    Args:
        waves: of the first stage, in launch order.
        rids: of the requests, in the order of `workload.jobs`.

    Raises:
        ValueError: a wave holds a request before it can have been sent, or a request was never computed.
    """
    number_of = {rid: number for number, rid in enumerate(rids)}
    members = [[number_of[rid_of(rid)] for rid in wave.rids if rid_of(rid) in number_of] for wave in waves]
    last_wave = {number: index for index, numbers in enumerate(members) for number in numbers}
    if len(last_wave) != len(rids):
        raise ValueError(f"{len(rids) - len(last_wave)} requests have no wave")
    arrivals = Arrivals(workload)
    arrived: dict[int, float] = {}
    ends: list[tuple[float, int]] = []
    free = [0.0] * stages
    for index, (wave, numbers) in enumerate(zip(waves, members, strict=True)):
        while any(number not in arrived for number in numbers):
            arrived.update({number: arrivals.sent_at[number] for number in arrivals.take(float("inf"))})
            if any(number not in arrived for number in numbers):
                if not ends:
                    raise ValueError(f"wave {index} holds a request that can't have been sent")
                moment, ended = heapq.heappop(ends)
                arrivals.end(ended, moment)
        moment = max(arrived[number] for number in numbers)
        for stage in range(stages):
            seconds = model.seconds(wave.tokens, wave.prefixes, stage=stage)
            start = max(moment, free[stage])
            free[stage] = moment = start + seconds
            if stage + 1 < stages:
                moment += model.transfer(sum(wave.tokens))
        for number in numbers:
            if last_wave[number] == index:
                heapq.heappush(ends, (moment, number))
    while ends:
        moment, ended = heapq.heappop(ends)
        arrivals.end(ended, moment)
    return max(arrivals.ended_at) - min(arrivals.sent_at)
