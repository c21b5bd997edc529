"""The arms of a comparison: stock SGLang with its settings, and WavePP with its planners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sglang_wavepp.planning.cost import GUESS, WaveCost
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.static import StaticPlanner
from sglang_wavepp.settings.flags import WaveSettings
from sglang_wavepp.simulate.chunks import ChunkSizer, StockQueue
from sglang_wavepp.simulate.learning import learn
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.outcome import Outcome
from sglang_wavepp.simulate.ring import run_ring
from sglang_wavepp.simulate.tick import TickLoop, TickRun
from sglang_wavepp.simulate.wavepp import WaveppRun
from sglang_wavepp.simulate.workload import Workload

Runner = Callable[[Machine, Workload, "Knobs"], Outcome]


@dataclass(frozen=True, slots=True)
class Knobs:
    """WavePP's settings; the defaults are the server's.

    Attributes:
        min_tokens: `--wavepp-min-wave-tokens`, `b_min`; None for the server's default, a share of `M`.
        fills: `F`, which counts only without a cost.
        progress_deadline: seconds that a small wave may be held back.
        believed: the cost that the planner is told; None for the machine's own.
    """

    min_tokens: int | None = None
    fills: int = WaveSettings.pipeline_fills
    progress_deadline: float = WaveSettings.progress_deadline_ms / 1e3
    believed: WaveCost | None = None

    def smallest(self, machine: Machine) -> int:
        """Tokens of the smallest wave on a machine, as the server works them out."""
        asked = WaveSettings(min_wave_tokens=self.min_tokens)
        return asked.smallest_wave_tokens(machine.max_tokens, machine.grid.step)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve.

    Attributes:
        name: stock arms begin with `stock`.
        about: one line for the help.
        run: simulates a workload.
    """

    name: str
    about: str
    run: Runner


def _tick(
    *, double: bool, own_stream: bool = False, skip: bool = False, dynamic: bool = False, part: int = 1
) -> Runner:
    def run(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
        loop = TickLoop(depth=len(machine.stages) if double else 0, own_stream=own_stream, skip_output=skip)
        return TickRun(machine, workload, _queue(machine, dynamic=dynamic, part=part), loop).run()

    return run


def _ring(*, double: bool, part: int = 1) -> Runner:
    def run(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
        slots = len(machine.stages) * (2 if double else 1)
        return run_ring(machine, workload, _queue(machine, dynamic=False, part=part), slots)

    return run


def _queue(machine: Machine, *, dynamic: bool, part: int) -> StockQueue:
    chunk = machine.max_tokens // part
    if chunk < machine.page:  # a long prompt would wait forever
        raise ValueError(
            f"stock's chunks of M/{part}, {chunk} tokens, hold no page of {machine.page}; leave those arms out"
        )
    sizer = ChunkSizer(base=chunk, cost=machine.cost, page=machine.page) if dynamic else None
    return StockQueue(chunk=chunk, page=machine.page, max_requests=machine.max_requests, sizer=sizer)


def make_planner(machine: Machine, knobs: Knobs, cost: WaveCost | None) -> MpuPlanner:
    """WavePP's planner for a machine."""
    return MpuPlanner(
        max_tokens=machine.max_tokens,
        min_tokens=knobs.smallest(machine),
        grid=machine.grid,
        max_requests=machine.max_requests,
        stages=len(machine.stages),
        fills=knobs.fills,
        progress_deadline=knobs.progress_deadline,
        cost=cost,
    )


def _wavepp(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
    planner = make_planner(machine, knobs, knobs.believed or machine.cost)
    planner.host = machine.host
    return WaveppRun(machine, workload, planner).run()


def _supply(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
    return WaveppRun(machine, workload, make_planner(machine, knobs, None)).run()


def _guess(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
    return WaveppRun(machine, workload, make_planner(machine, knobs, GUESS)).run()


def _learned(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
    planner = make_planner(machine, knobs, GUESS)
    return WaveppRun(machine, workload, planner, measured=learn(planner, host=machine.host)).run()


def _static(machine: Machine, workload: Workload, knobs: Knobs) -> Outcome:
    planner = StaticPlanner(budget=machine.max_tokens, grid=machine.grid, max_requests=machine.max_requests)
    return WaveppRun(machine, workload, planner).run()


DEFAULT_CHUNK = (
    Arm("stock-p", "stock, ring P", _tick(double=False)),
    Arm("stock-p-stream", "ring P, transfers on their own stream", _tick(double=False, own_stream=True)),
    Arm(
        "stock-p-skip",
        "the same, no output of middle chunks",
        _tick(double=False, own_stream=True, skip=True),
    ),
    Arm("stock-p-ideal", "ring P on a loop without faults", _ring(double=False)),
    Arm(
        "stock-p-dynamic",
        "stock-p-skip with dynamic chunking",
        _tick(double=False, own_stream=True, skip=True, dynamic=True),
    ),
    Arm("stock-2p", "stock, --pp-async-batch-depth P", _tick(double=True)),
    Arm("stock-2p-stream", "ring 2P, transfers on their own stream", _tick(double=True, own_stream=True)),
    Arm(
        "stock-2p-skip",
        "the same, no output of middle chunks",
        _tick(double=True, own_stream=True, skip=True),
    ),
    Arm("stock-2p-ideal", "ring 2P on a loop without faults", _ring(double=True)),
    Arm(
        "stock-2p-dynamic",
        "stock-2p-skip with dynamic chunking",
        _tick(double=True, own_stream=True, skip=True, dynamic=True),
    ),
)
"""Stock at the default chunk size; the best of them in a cell is the baseline."""

SMALLER_CHUNKS = tuple(
    arm
    for part in (2, 4, 8)
    for arm in (
        Arm(
            f"stock-m{part}",
            f"ring 2P, own stream, chunks of M/{part}",
            _tick(double=True, own_stream=True, part=part),
        ),
        Arm(
            f"stock-m{part}-ideal",
            f"ring 2P without faults, chunks of M/{part}",
            _ring(double=True, part=part),
        ),
    )
)
"""The second baseline: one static chunk size for everything."""

WAVEPP = (
    Arm("wavepp-static", "WavePP's LOOP with waves of M", _static),
    Arm(
        "wavepp-supply",
        "--wavepp-planner supply: M halved until the known work fills the pipeline F times",
        _supply,
    ),
    Arm("wavepp-guess", "the planner with its guess of a cost, whatever the device", _guess),
    Arm(
        "wavepp-learned", "the planner that starts from a guess and learns its cost during the run", _learned
    ),
    Arm("wavepp", "the planner with the device's cost", _wavepp),
)

ARMS = {arm.name: arm for arm in (*DEFAULT_CHUNK, *SMALLER_CHUNKS, *WAVEPP)}


def wrong_cost(machine: Machine, *, per_wave: float, per_token: float, per_pair: float) -> Knobs:
    """Settings of a planner that is told the device's cost, each part times a factor."""
    cost = machine.cost
    return replace(
        Knobs(),
        believed=WaveCost(
            per_wave=cost.per_wave * per_wave,
            per_token=cost.per_token * per_token,
            per_pair=cost.per_pair * per_pair,
        ),
    )
