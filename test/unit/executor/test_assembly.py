from __future__ import annotations

from array import array

import pytest
from unit.cache.real_rank import RealRank, record

from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.executor.assembly import _admission, _planner, publish_rule, wave_costs
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import WaveSettings

pytestmark = pytest.mark.unit

LIMITS = PoolLimits(tokens=1024, page_size=16, rows=4, context=1024)


def test_a_wave_smaller_than_the_recurrent_grid_is_a_wrong_setting() -> None:
    """The launcher doesn't know the grid of the model, so the ranks find it: one line, and no traceback."""
    grid = SpanGrid(page=16, recurrent=64)
    assert _planner(WaveSettings(max_wave_tokens=65, planner="static"), 256, grid, LIMITS, 2).budget == 65
    with pytest.raises(SettingsError, match="at least 64 tokens .* set --wavepp-max-wave-tokens"):
        _planner(WaveSettings(max_wave_tokens=63), 256, grid, LIMITS, 2)


def test_the_smallest_wave_must_fit_into_the_largest() -> None:
    grid = SpanGrid(page=16, recurrent=64)
    assert isinstance(_planner(WaveSettings(), 256, grid, LIMITS, 2), MpuPlanner)
    with pytest.raises(SettingsError, match="--wavepp-min-wave-tokens 512 is more than a wave of 256 tokens"):
        _planner(WaveSettings(min_wave_tokens=512), 256, grid, LIMITS, 2)


def test_the_tree_hears_which_blocks_are_waited_for_and_the_escrows_what_becomes_of_victims() -> None:
    rank = RealRank(page=16, tokens=1024, leases=True)
    core = rank.tree.core
    core.holder = None
    made = _admission(WaveSettings(), rank.cache, SpanGrid(page=16), LIMITS, headroom=0, hashed=None)
    assert isinstance(made, LeaseAdmission) and core.holder is made.escrows
    made.hint(record("waits", array("q", range(200))))
    assert len(core.wanted) == 1


@pytest.mark.parametrize(("name", "measures"), [("mpu", True), ("supply", False), ("static", False)])
def test_only_the_planner_that_sizes_waves_by_time_has_them_measured(name: str, measures: bool) -> None:
    settings = WaveSettings(planner=name)
    planner = _planner(settings, 256, SpanGrid(page=16), LIMITS, 2)
    assert (wave_costs(settings, planner) is not None) == measures
    # Without a cost the planner halves budgets, which is what supply means.
    assert (getattr(planner, "cost", None) is not None) == measures


@pytest.mark.parametrize("hybrid", [True, False])
def test_small_waves_do_not_publish_each(hybrid: bool) -> None:
    """Nor on a model without recurrent layers: there the LOOP pays for every position with a walk of the tree."""
    grid = SpanGrid(page=16, recurrent=64 if hybrid else 1)
    assert publish_rule(WaveSettings(), 4096, grid, hybrid=hybrid).period == 4096
    assert publish_rule(WaveSettings(max_wave_tokens=2048), 4096, grid, hybrid=hybrid).period == 2048
    assert publish_rule(WaveSettings(snapshot_period=1024), 4096, grid, hybrid=hybrid).period == 1024


def test_what_a_span_may_publish_depends_on_what_the_model_keeps() -> None:
    dense = publish_rule(WaveSettings(), 4096, SpanGrid(page=16, recurrent=1), hybrid=False)
    tracked = publish_rule(WaveSettings(), 4096, SpanGrid(page=16, recurrent=64), hybrid=True)
    running = publish_rule(WaveSettings(), 4096, SpanGrid(page=16, recurrent=1), hybrid=True)
    assert [rule.whole for rule in (dense, tracked, running)] == [True, False, False]
    assert [rule.inside for rule in (tracked, running)] == [True, False]
