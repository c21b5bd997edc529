"""What the simulator says of an arm and cell that was measured: same stages, M, lengths and speed of the device."""

from __future__ import annotations

from dataclasses import replace

from benchmark.paced.cells import Cell
from benchmark.paced.measure import Setting, machine
from benchmark.paced.records import Record
from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.chunks import ChunkSizer, StockQueue
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome
from sglang_wavepp.simulate.tick import TickLoop, TickRun
from sglang_wavepp.simulate.workload import Workload

SAME = {
    "stock": "stock-p",
    "stock-stream": "stock-p-stream",
    "stock-stream-skip": "stock-p-skip",
    "stock-2p": "stock-2p",
    "stock-2p-stream": "stock-2p-stream",
    "stock-2p-stream-skip": "stock-2p-skip",
    "stock-p-dynamic": "stock-p-dynamic",
    "stock-m2": "stock-m2",
    "stock-m4": "stock-m4",
    "stock-m8": "stock-m8",
    "wavepp-static": "wavepp-static",
    "wavepp": "wavepp",
}
"""Arms of the paced device and the simulator's names for them."""
DYNAMIC = "stock-dynamic"
"""The simulator's own arm of dynamic chunks skips outputs too, which this one does not."""


def simulated(record: Record, setting: Setting, *, rounds: int) -> Outcome | None:
    """The run of a record's arm and cell in the simulator; None where it has no such arm or workload.

    Args:
        rounds: requests of a cell, as a multiple of its concurrency.
    """
    try:
        workload = Cell(record.workload, record.concurrency, rounds).workload(shorten=record.shorten)
    except ValueError:  # arrivals on a cache that is too small, and traces, have a cache to simulate too
        return None
    model = setting.model.at_scale(record.scale)
    device = machine(setting, model)
    launch = model.launch / model.scale
    device = replace(
        device,
        transfer=model.transfer(1),
        host=device.host + launch,
        stock_host=device.stock_host + launch,
    )
    if record.arm == DYNAMIC:
        return _dynamic(device, workload)
    name = SAME.get(record.arm)
    # The servers are told nothing of waves but M, and so is the simulator: its smallest wave is theirs.
    return None if name is None else ARMS[name].run(device, workload, Knobs())


def _dynamic(device: Machine, workload: Workload) -> Outcome:
    sizer = ChunkSizer(base=device.max_tokens, cost=device.cost, page=device.page)
    queue = StockQueue(
        chunk=device.max_tokens, page=device.page, max_requests=device.max_requests, sizer=sizer
    )
    return TickRun(device, workload, queue, TickLoop(depth=len(device.stages), own_stream=True)).run()
