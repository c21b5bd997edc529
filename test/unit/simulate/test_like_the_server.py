"""What the simulator assumes where nothing is asked is what the server does where nothing is asked."""

import pytest

from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.executor.assembly import WAVES_AHEAD, _planner
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.settings.flags import WaveSettings
from sglang_wavepp.simulate.arms import Knobs, make_planner
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.options import machine_of, parser

SETTINGS = ("_budgets", "_limits", "_patience", "_ring", "_stages", "_supply_waves")
"""Attributes of a planner that follow from its arguments."""


def _server(settings: WaveSettings, machine: Machine) -> MpuPlanner:
    limits = PoolLimits(tokens=1 << 20, page_size=machine.page, rows=machine.max_requests, context=1 << 20)
    made = _planner(settings, machine.max_tokens, machine.grid, limits, len(machine.stages))
    assert isinstance(made, MpuPlanner)
    return made


@pytest.mark.parametrize("max_tokens", [4096, 16384])
def test_the_planner_is_the_servers(max_tokens: int) -> None:
    machine = Machine(stages=(1.0,) * 8, max_tokens=max_tokens)
    own, server = make_planner(machine, Knobs(), None), _server(WaveSettings(), machine)
    assert {name: getattr(own, name) for name in SETTINGS} == {
        name: getattr(server, name) for name in SETTINGS
    }


@pytest.mark.parametrize("asked", [8, 100, 1000, 4096])
def test_a_smallest_wave_off_the_grid_is_rounded_as_the_server_rounds_it(asked: int) -> None:
    machine = Machine.even(4)
    own = make_planner(machine, Knobs(min_tokens=asked), None)
    assert own._limits == _server(WaveSettings(min_wave_tokens=asked), machine)._limits


def test_as_many_waves_are_admitted_ahead() -> None:
    assert Machine.even(8).admitted_waves == WAVES_AHEAD


def test_the_command_line_asks_for_the_default_pipeline() -> None:
    assert machine_of(parser("").parse_args([])) == Machine.even(8)
