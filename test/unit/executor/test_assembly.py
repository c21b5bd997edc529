from __future__ import annotations

import pytest

from sglang_wavepp.admission.pools import PoolLimits
from sglang_wavepp.executor.assembly import _planner
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
