"""The servers that several test files share."""

from __future__ import annotations

from benchmark.configuration import ServerConfig
from sglang_wavepp.cpu.models.configurations import ModelKind

HYBRID = ServerConfig(
    model=ModelKind.HYBRID, wavepp=True, trace=True, options=("--enable-custom-logit-processor",)
)
DENSE = ServerConfig(model=ModelKind.DENSE, wavepp=True, trace=True, page=16)
HYBRID_MOE = ServerConfig(model=ModelKind.HYBRID_MOE, wavepp=True, trace=True, chunk=192)
SMALL_POOL = ServerConfig(model=ModelKind.HYBRID, wavepp=True, trace=True, pool=4096)
ZERO_SNAPSHOT = HYBRID.with_(environment=(("SGLANG_WAVEPP_FAULT", "zero_snapshot"),))
TWO_WALK = DENSE.with_(
    trace=False,
    options=("--wavepp-admission", "two-walk", "--wavepp-planner", "supply", "--wavepp-pipeline-fills", "3"),
)
INLINE = HYBRID.with_(wave_tokens=110, options=("--wavepp-admission", "inline"))
TENSOR_PARALLEL = HYBRID.with_(tp=2)
UNEQUAL = HYBRID.with_(
    environment=(("SGLANG_WAVEPP_FAULT", "evict_cache:1:5,pool_tokens:1:8192,slow_grammar:1:2500"),)
)
UNEVEN_STAGES = HYBRID.with_(pp=3, environment=(("SGLANG_PP_LAYER_PARTITION", "3,1,4"),))
