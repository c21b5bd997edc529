"""When the launcher forks, and what it does before."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Iterator

import pytest

from sglang_wavepp.cpu import fork


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what happened. The launcher of these tests has nothing to import, and spawns by default."""
    happened: list[str] = []
    before = multiprocessing.get_start_method(allow_none=True)
    monkeypatch.setattr(fork, "_SHARED_MODULES", ())
    monkeypatch.setattr(fork, "_prepared", False)
    monkeypatch.setattr(fork, "_before_fork", [lambda: happened.append("before_fork")])
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    monkeypatch.delenv(fork.FORK_VARIABLE, raising=False)
    multiprocessing.set_start_method("spawn", force=True)
    yield happened
    multiprocessing.set_start_method(before, force=True)


def launch(happened: list[str]) -> None:
    def upstream(argument: str) -> str:
        happened.append(multiprocessing.get_start_method())
        return argument

    assert fork._launch(upstream, "value") == "value"


def test_it_forks_after_the_preparation_and_only_inside_the_launch(calls: list[str]) -> None:
    launch(calls)
    launch(calls)
    assert calls == ["before_fork", "fork", "fork"]
    assert multiprocessing.get_start_method() == "spawn"


def test_children_copy_no_page_for_the_collector(calls: list[str]) -> None:
    frozen: list[int] = []
    fork._launch(lambda: frozen.append(gc.get_freeze_count()))
    assert frozen[0] > 10_000 and gc.get_freeze_count() == 0, (
        "the launcher's own rubbish is collected afterwards"
    )


def test_the_start_method_comes_back_when_the_launch_fails(calls: list[str]) -> None:
    def upstream() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        fork._launch(upstream)
    assert multiprocessing.get_start_method() == "spawn"


def test_other_threads_forbid_it(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    other = threading.Thread(name="metrics")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), other])
    launch(calls)
    assert calls == ["spawn"]
    assert "metrics" in str(fork.reason_against_fork())


def test_a_thread_that_the_preparation_starts_forbids_it(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_thread() -> None:
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), threading.Thread()])

    monkeypatch.setattr(fork, "_before_fork", [start_thread])
    launch(calls)
    assert calls == ["spawn"]


def test_the_environment_switches_it_off(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fork.FORK_VARIABLE, "0")
    launch(calls)
    assert calls == ["spawn"]


def test_a_child_goes_back_to_spawn(calls: list[str]) -> None:
    multiprocessing.set_start_method("fork", force=True)
    fork._reset_start_method()
    assert multiprocessing.get_start_method() == "spawn"
