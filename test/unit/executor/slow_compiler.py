"""SGLang's grammar manager with requests and grammars that a test makes up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang.srt.constrained.grammar_manager import GrammarManager


class Compiled:
    """A grammar that was compiled."""

    def copy(self) -> Compiled:
        return self


class Request:
    """The part of SGLang's request that its grammar manager touches."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.grammar: Any = None
        self.grammar_key = ("regex", rid)
        self.grammar_wait_ct = 0
        self.sampling_params = SimpleNamespace(max_new_tokens=1, custom_params=None)
        self.origin_input_ids = [1, 2, 3]
        self.refusal: str | None = None

    def finished(self) -> bool:
        return False

    def set_finish_with_abort(self, message: str) -> None:
        self.refusal = message
        self.grammar = None


def manager_with(scheduler: Any) -> Any:
    """SGLang's grammar manager of a rank under WavePP, with a cache that keeps nothing."""
    manager: Any = object.__new__(GrammarManager)
    manager.scheduler = scheduler
    manager.grammar_queue = []
    manager.grammar_backend = SimpleNamespace(set_cache=lambda key, value: None)
    manager.pp_rank, manager.pp_size, manager.grammar_sync_size = 0, 1, 1
    manager.SGLANG_GRAMMAR_POLL_INTERVAL = 0.2  # long, so that waiting would show
    manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 25
    return manager
