"""What the scheduler's subclass changes before there is an executor."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_wavepp.executor import scheduler
from sglang_wavepp.settings.errors import SettingsError

pytestmark = pytest.mark.unit


class Base:
    """The part of SGLang's scheduler that makes the grammar manager."""

    grammar_manager: Any

    def init_grammar_manager(self) -> None:
        self.grammar_manager = SimpleNamespace(
            pp_rank=1, pp_size=2, grammar_sync_size=2, SGLANG_GRAMMAR_MAX_POLL_ITERATIONS=10
        )


@pytest.mark.parametrize(("pp", "tp", "gives_up"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_only_rank_0_gives_up_on_a_grammar(
    monkeypatch: pytest.MonkeyPatch, pp: int, tp: int, gives_up: bool
) -> None:
    monkeypatch.setattr(scheduler, "get_parallel", lambda: SimpleNamespace(pp_rank=pp, tp_rank=tp))
    made = object.__new__(scheduler.make_wave_scheduler(Base, verify=lambda: None, fingerprints={}))
    made.init_grammar_manager()
    manager = made.grammar_manager
    assert (manager.pp_rank, manager.pp_size, manager.grammar_sync_size) == (0, 1, 1)
    assert (manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS < 1e9) is gives_up


class Executor:
    """Runs into `failure`, and remembers how it was closed."""

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure
        self.closed: list[bool] = []

    def run(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self, *, failed: bool = False) -> None:
        self.closed.append(failed)


@pytest.mark.parametrize("failure", [None, RuntimeError("broken"), SystemExit(1)])
def test_a_rank_that_fails_does_not_leave_like_one_that_ends(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException | None
) -> None:
    executor = Executor(failure)
    monkeypatch.setattr(scheduler, "assemble", lambda *_: executor)
    made = object.__new__(scheduler.make_wave_scheduler(Base, verify=lambda: None, fingerprints={}))
    made.init_pp_loop_state = lambda: None
    with contextlib.suppress(RuntimeError, SystemExit):
        made.event_loop_pp()
    assert executor.closed == [failure is not None]


def test_what_the_ranks_refuse_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise SettingsError("a wave holds no span")

    monkeypatch.setattr(scheduler, "assemble", refuse)
    made = object.__new__(scheduler.make_wave_scheduler(Base, verify=lambda: None, fingerprints={}))
    made.init_pp_loop_state = lambda: None
    with pytest.raises(SystemExit) as raised:
        made.event_loop_pp()
    assert raised.value.code == 2
    assert capfd.readouterr().err == "error: a wave holds no span\n"


def test_results_of_prefills_publish_the_load_only_now_and_then_unless_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forced: list[float] = []
    asked: list[float] = []
    now = [100.0]
    idle = [False]

    class Loaded(Base):
        def publish_load_snapshot(self, force: bool = False) -> float | None:
            (forced if force else asked).append(now[0])
            return now[0] if force else None

    monkeypatch.setattr(scheduler.time, "monotonic", lambda: now[0])
    made = object.__new__(scheduler.make_wave_scheduler(Loaded, verify=lambda: None, fingerprints={}))
    made._executor = SimpleNamespace(is_idle=lambda: idle[0])
    for _ in range(32):
        made.publish_load_snapshot(force=True)
        now[0] += 0.0101
    assert len(forced) == 4 and len(asked) == 28, "the others count as results of a decode"
    made.publish_load_snapshot(force=False)
    assert len(asked) == 29, "what is not forced is left to SGLang"
    idle[0] = True
    for _ in range(2):
        made.publish_load_snapshot(force=True)
        assert forced[-1] == now[0]
    assert len(forced) == 6
