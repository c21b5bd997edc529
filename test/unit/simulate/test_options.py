"""Options that would be ignored beside others are refused, whatever their values."""

import pytest

from sglang_wavepp.simulate.options import NOT_CHOSEN, check, parser, rounds_of, workloads_of

CHOOSE = {
    "rate": ["--rate", "1"],
    "requests": ["--requests", "100"],
    "stagger_ms": ["--stagger-ms", "0"],
    "arms": ["--arms", "wavepp"],
    "json": ["--json", "records.json"],
    "picture": ["--picture", "picture.svg"],
    "timeline": ["--timeline"],
}


def _check(*argv: str) -> None:
    check(parser("").parse_args(argv))


def test_every_option_that_choose_has_no_use_for_is_tried_here() -> None:
    assert set(CHOOSE) == set(NOT_CHOSEN)


@pytest.mark.parametrize("given", CHOOSE.values(), ids=CHOOSE)
def test_choose_refuses_what_it_has_no_use_for_and_names_it(given: list[str]) -> None:
    with pytest.raises(ValueError, match=f"--choose .* without {given[0]}$"):
        _check("--choose", *given)


@pytest.mark.parametrize("option", ["--max-wave-tokens", "--min-wave-tokens", "--fills"])
def test_several_settings_need_choose(option: str) -> None:
    _check("--choose", "--arm", "wavepp-supply", option, "1024,2048")
    _check(option, "1024")
    with pytest.raises(ValueError, match=f"{option} are compared with --choose"):
        _check(option, "1024,2048")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--arm", "wavepp"], "--arm belongs to --choose"),
        (["--requests", "100"], "--requests belongs to an open loop"),
        (["--rate", "1", "--rounds", "2"], "--rounds belongs to a closed loop"),
        (["--rate", "1", "--stagger-ms", "0"], "--stagger-ms belongs to a closed loop"),
        (["--pp", "8", "--stages", "1,1"], "leave --pp out"),
        (["--json", "x", "--picture", "x"], "can't both be x"),
    ],
)
def test_options_that_contradict_each_other_are_refused(argv: list[str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _check(*argv)


@pytest.mark.parametrize("option", [["--timeline"], ["--picture", "picture.svg"]])
def test_a_timeline_shows_a_single_cell(option: list[str]) -> None:
    asked = parser("").parse_args([*option, "--cells", "cold65"])
    assert len(workloads_of(asked)) == 1
    with pytest.raises(ValueError, match="single cell"):
        workloads_of(parser("").parse_args(option))


def test_what_is_not_given_has_its_default() -> None:
    asked = parser("").parse_args([])
    check(asked)
    assert rounds_of(asked) == 2
    assert len(workloads_of(asked)) == 29
    opened = workloads_of(parser("").parse_args(["--rate", "2"]))
    assert [len(workload.jobs) for workload in opened] == [100] * 6


def test_the_page_and_the_stagger_reach_every_workload() -> None:
    closed = workloads_of(parser("").parse_args(["--page", "100", "--stagger-ms", "50"]))
    opened = workloads_of(parser("").parse_args(["--page", "100", "--rate", "1"]))
    assert {workload.stagger for workload in closed} == {0.05}
    assert all(job.cached % 100 == 0 for workload in (*closed, *opened) for job in workload.jobs)


@pytest.mark.parametrize("words", [["--fills", "3", "--arms", "wavepp"], ["--choose", "--fills", "1,2,3"]])
def test_fills_are_refused_where_no_arm_reads_them(words: list[str]) -> None:
    with pytest.raises(ValueError, match="--fills is read by wavepp-supply alone"):
        _check(*words)
    _check("--choose", "--arm", "wavepp-supply", "--fills", "1,2,3")
