"""Makes one rank compile grammars slowly, for tests."""

from __future__ import annotations

import time
from typing import Any

from sglang_wavepp import faults


def slow_down(manager: Any, rank: int) -> None:
    """Delay every compilation of SGLang's grammar manager on this rank, if a fault asks for it."""
    milliseconds = faults.number_for_rank(faults.SLOW_GRAMMAR, rank)
    backend = manager.grammar_backend
    if milliseconds is None or backend is None:
        return
    compile_now = backend._init_value_dispatch

    def compile_late(*args: Any) -> Any:
        time.sleep(milliseconds / 1000)
        return compile_now(*args)

    backend._init_value_dispatch = compile_late
