from __future__ import annotations

import pytest
from model.pipeline import Pipeline, World

from sglang_wavepp.executor.readings import readings
from sglang_wavepp.planning.cost import GUESS
from sglang_wavepp.planning.grid import SpanGrid
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.telemetry.metrics import METRICS

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("admission", ["two-walk", "lease"])
def test_every_reading_is_in_the_table_and_the_table_has_no_other(admission: str) -> None:
    pipeline = Pipeline(World(admission=admission, requests=0, pools=(12, 9)), seed=1)
    pipeline.submit([0, 1, 0, 1], 2)
    pipeline.drain()
    pipeline.submit([0, 1, 0, 0, 1], 2)
    pipeline.drain()
    planner = MpuPlanner(
        max_tokens=64, min_tokens=16, grid=SpanGrid(page=4), max_requests=4, stages=2, cost=GUESS
    )
    lead = readings(pipeline.ranks[0].admission, pipeline.leading, planner)
    names = {metric.name for metric in METRICS}
    assert lead.keys() <= names
    if admission == "lease":
        assert lead.keys() == names
        assert lead["hints_total"] == 2 and lead["hint_probes_total"] > 2  # type: ignore[operator]
        assert lead["hint_stale_tokens_total"] == 0
    assert lead["leases_total"] == 2
    assert lead["reused_tokens_total"] == 3
    assert lead["attempts_total"] == {"admitted": 2}
    assert (lead["leases_held"], lead["promised_requests"], lead["reserved_tokens"]) == (0, 0, 0)
    assert lead["wave_budget_tokens"] == 64
    assert lead["wave_cost_seconds"]["wave"] == GUESS.per_wave  # type: ignore[index]
    other = readings(pipeline.ranks[1].admission, pipeline.following[0], planner)
    assert "rounds_total" not in other
    assert other["leases_total"] == 2
