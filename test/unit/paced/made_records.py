"""Records as a run would keep them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from benchmark.paced.records import Record, StageRecord


def record(**changes: Any) -> Record:
    """A measurement of stock SGLang at ``reuse131:4`` that may be used, with some fields changed."""
    stage = StageRecord(
        waves=4,
        tokens=64,
        wave_ms=100,
        idle=0.5,
        late_s=1,
        upstream_s=1,
        host_ms=5,
        process_ms=9,
        run_queue_ms=1,
    )
    values: dict[str, Any] = {
        "workload": "reuse131",
        "concurrency": 4,
        "arm": "stock",
        "repeat": 0,
        "tok_s": 1000.0,
        "p50_s": 1.0,
        "p95_s": 2.0,
        "idle": 0.5,
        "plan_tok_s": 2000.0,
        "bound_tok_s": 4000.0,
        "good_hits": 1.0,
        "scale": 1.0,
        "shorten": 4,
        "pp": 2,
        "wave_tokens": 4096,
        "rejected": False,
        "reason": None,
        "settings": "d",
        "load": 0.1,
        "hosts": 0.5,
        "requests": 8,
        "stages": [stage],
    }
    return Record(**{**values, **changes})
