import math
from dataclasses import replace
from typing import Any

import pytest

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.simulate.arms import SMALLER_CHUNKS, Knobs
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.records import workload_of


@pytest.mark.parametrize(
    "wrong",
    [
        *({"stages": stages} for stages in ((), (1.0, 0.0), (math.nan, 1.0), (math.inf,))),
        *(
            {name: value}
            for name in ("host", "stock_host", "transfer")
            for value in (-1e-9, math.nan, math.inf)
        ),
        *({"cost": WaveCost(per_wave=value, per_token=1e-5)} for value in (math.nan, math.inf)),
        *({"admitted_waves": value} for value in (0.0, -1.0, math.nan)),
        {"max_requests": 0},
        {"page": 0},
        {"max_tokens": 63},
    ],
)
def test_a_pipeline_that_cannot_be_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"pipeline|page|request"):
        replace(Machine.even(2), **wrong)


@pytest.mark.parametrize("arm", SMALLER_CHUNKS, ids=lambda arm: arm.name)
def test_a_chunk_that_holds_no_page_is_an_error_and_no_endless_wait(arm: Any) -> None:
    machine = replace(Machine.even(2), page=16384)
    with pytest.raises(ValueError, match="hold no page of 16384"):
        arm.run(machine, workload_of("cold65", 1, page=16384), Knobs())
