"""When a process runs on the CPU reference platform, and what it sets then."""

from __future__ import annotations

import pytest

from sglang_wavepp.cpu import environment, platform
from sglang_wavepp.cpu.platform import ContradictoryPlatformError, is_selected

NAMED = {"SGLANG_PLATFORM": "wavepp_cpu"}
SERVE = ["sglang", "serve", "--model-path", "m"]


@pytest.mark.parametrize(
    "argv",
    [[*SERVE, "--device", "cpu"], [*SERVE, "--device=cpu"], ["x", "--device", "cuda", "--device", "cpu"]],
)
def test_device_cpu_selects_it_where_no_gpu_is_visible(argv: list[str]) -> None:
    assert is_selected({}, argv, gpu_visible=False)


@pytest.mark.parametrize("argv", [[*SERVE, "--device", "cpu"], [*SERVE, "--device=cpu"], SERVE])
def test_it_is_never_selected_silently_where_a_gpu_is_visible(argv: list[str]) -> None:
    assert not is_selected({}, argv, gpu_visible=True)


@pytest.mark.parametrize(
    "argv",
    [SERVE, [*SERVE, "--device", "cuda"], [*SERVE, "--device"], ["x", "--device", "cpu", "--device=cuda"]],
)
def test_other_command_lines_do_not_select_it(argv: list[str]) -> None:
    assert not is_selected({}, argv, gpu_visible=False)


@pytest.mark.parametrize("gpu_visible", [True, False])
def test_its_name_selects_it_on_any_machine(gpu_visible: bool) -> None:
    assert is_selected(NAMED, SERVE, gpu_visible=gpu_visible)


def test_another_name_or_sglangs_own_cpu_engine_wins_over_the_command_line() -> None:
    argv = [*SERVE, "--device", "cpu"]
    assert not is_selected({"SGLANG_PLATFORM": "other"}, argv, gpu_visible=False)
    assert not is_selected({"SGLANG_USE_CPU_ENGINE": "1"}, argv, gpu_visible=False)


def test_naming_it_and_the_cpu_engine_at_once_is_refused() -> None:
    with pytest.raises(ContradictoryPlatformError, match="SGLANG_USE_CPU_ENGINE"):
        is_selected({**NAMED, "SGLANG_USE_CPU_ENGINE": "1"}, SERVE, gpu_visible=False)


def test_activation_names_the_platform_class_and_sets_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr("sys.argv", [*SERVE, "--device", "cpu"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    assert platform.activate() == platform.PLATFORM_CLASS
    assert environment.os.environ["MKL_NUM_THREADS"] == "1"

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert platform.activate() is None


def test_what_the_user_set_wins() -> None:
    environ = {"OMP_NUM_THREADS": "4", environment.BIND_VARIABLE: "7|8"}
    environment.apply_process_defaults(environ)
    environment.apply_rank_defaults(2, environ)
    assert environ["OMP_NUM_THREADS"] == "4"
    assert environ[environment.BIND_VARIABLE] == "7|8"
    assert environ["SGLANG_USE_CPU_ENGINE"] == "0"


@pytest.mark.parametrize(
    ("ranks", "cores", "expected"), [(1, {3}, "3"), (3, {1, 0}, "0|1|0"), (2, {5, 2, 9}, "2|5")]
)
def test_cores_are_dealt_in_turn(ranks: int, cores: set[int], expected: str) -> None:
    assert environment.core_list(ranks, cores) == expected


@pytest.mark.parametrize(("ranks", "cores"), [(0, {1}), (2, set())])
def test_no_rank_or_no_core_is_an_error(ranks: int, cores: set[int]) -> None:
    with pytest.raises(ValueError, match="cannot deal"):
        environment.core_list(ranks, cores)
