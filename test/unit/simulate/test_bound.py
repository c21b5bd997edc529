import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_wavepp.planning.cost import WaveCost
from sglang_wavepp.simulate.arms import ARMS, Knobs
from sglang_wavepp.simulate.bound import bound_tok_s
from sglang_wavepp.simulate.machine import Machine
from sglang_wavepp.simulate.steady import best_found
from sglang_wavepp.simulate.workload import Job, Phase, Workload, closed, opened, phases


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60_000)), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(0, 6),
    st.booleans(),
    st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6),
    st.booleans(),
    st.floats(0, 0.05),
    st.one_of(st.just(0.0), st.floats(1e-11, 1e-9)),
    st.sampled_from([name for name in ARMS if "dynamic" not in name]),
)
@settings(max_examples=100)
def test_no_arm_exceeds_the_bound(
    requests: list[tuple[int, int]],
    concurrency: int,
    later: int,
    falling: bool,
    stages: list[float],
    equal: bool,
    per_wave: float,
    per_pair: float,
    arm: str,
) -> None:
    machine = Machine(
        stages=(1.0,) * len(stages) if equal else tuple(stages),
        cost=WaveCost(per_wave=per_wave, per_token=2e-5, per_pair=per_pair),
        max_tokens=8192,
    )
    jobs = tuple(Job(pages * 64, pages * 64 + length) for pages, length in requests)
    first = max(0, len(jobs) - later)
    stretches = [Phase(1, first), Phase(concurrency, len(jobs) - first)]
    if falling:
        stretches.reverse()
    workload = Workload("w", concurrency, jobs, phases=tuple(each for each in stretches if each.requests))
    assert ARMS[arm].run(machine, workload, Knobs()).tok_s <= bound_tok_s(machine, workload) * (1 + 1e-9)


@pytest.mark.parametrize("workload", [phases(), opened("mixed131", rate=0.5, count=30), closed("cold65", 4)])
@pytest.mark.parametrize("arm", ["wavepp", "stock-2p-dynamic"])
def test_nor_in_phases_or_open_loops(workload: Workload, arm: str) -> None:
    machine = Machine.even(8)
    assert ARMS[arm].run(machine, workload, Knobs()).tok_s <= bound_tok_s(machine, workload)


def test_for_one_request_the_bound_is_reached_but_for_grid_hosts_and_admission() -> None:
    workload, machine = closed("cold131", 1), Machine.even(8)
    assert 0.97 < best_found(machine, workload).tok_s / bound_tok_s(machine, workload) <= 1


@pytest.mark.parametrize("waves", [3, 10, 40])
def test_equal_waves_of_the_right_number_reach_it(waves: int) -> None:
    # So much work that the square root is a whole number of waves: n = sqrt(7 w / C).
    per_wave, per_token = 0.007, 1e-5
    tokens = round(waves * waves * per_wave / 7 / per_token)
    machine = Machine(
        stages=(1.0,) * 8,
        cost=WaveCost(per_wave=per_wave, per_token=per_token),
        max_tokens=1 << 30,
        page=1,
    )
    workload = Workload("w", 1, (Job(0, tokens),), phases=(Phase(1, 1),))
    found = best_found(machine, workload, factors=[1.0003])
    assert len(found.waves) == waves
    assert found.tok_s == pytest.approx(bound_tok_s(machine, workload), rel=2e-3)


def test_hindsight_is_no_worse_than_any_single_wave_time_that_it_tries() -> None:
    workload, machine = closed("reuse131", 4), Machine.even(8)
    every = [best_found(machine, workload, factors=[factor]).tok_s for factor in (0.7, 1.0, 1.4)]
    assert best_found(machine, workload).tok_s == max(every)
