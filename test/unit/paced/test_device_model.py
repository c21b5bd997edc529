"""What a wave costs on the paced device."""

from __future__ import annotations

import pytest

from benchmark.paced.device_model import PRESETS, DeviceModel
from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.planning.spans import PlannedSpan

MODEL = DeviceModel(per_wave=1.0, per_token=0.1, per_pair=0.01)


def test_a_wave_costs_its_tokens_and_their_contexts() -> None:
    # 10 tokens behind 20: 10 * (20 + 5) = 250 pairs; 4 tokens behind nothing: 4 * 2 = 8 pairs.
    assert MODEL.seconds([10, 4], [20, 0], stage=0) == pytest.approx(1.0 + 1.4 + 2.58)


def test_it_is_the_planners_cost_model() -> None:
    cost = WaveCost(per_wave=1.0, per_token=0.1, per_pair=0.01)
    spans = [
        PlannedSpan(rid="a", start=20, length=10),
        PlannedSpan(rid="b", start=0, length=4),
    ]
    assert MODEL.seconds([10, 4], [20, 0], stage=0) == pytest.approx(cost.of(spans))


def test_scale_and_stage_factors() -> None:
    model = DeviceModel(per_wave=1.0, per_token=0.0, per_pair=0.0, factors=(1.0, 1.5), scale=0.5)
    assert [model.seconds([1], [0], stage=stage) for stage in range(3)] == [2.0, 3.0, 2.0]
    assert DeviceModel(transfer_per_token=0.1, scale=0.5).transfer(10) == pytest.approx(2.0)


def test_shorter_prompts_and_waves_take_as_long_as_before() -> None:
    whole, short = PRESETS["transfer"], PRESETS["transfer"].shortened(4)
    assert short.seconds([1024], [8192], stage=0) == pytest.approx(whole.seconds([4096], [32768], stage=0))
    assert short.transfer(1024) == pytest.approx(whole.transfer(4096))


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_model_survives_the_environment(name: str) -> None:
    assert DeviceModel.from_json(PRESETS[name].to_json()) == PRESETS[name]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"speed": 1}', '{"scale": 0}', '{"per_wave": -1}', '{"factors": [0]}']
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no device model|above zero|Expecting value"):
        DeviceModel.from_json(text)
