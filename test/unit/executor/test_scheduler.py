"""What the scheduler's subclass changes before there is an executor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_wavepp.executor import scheduler

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
