"""The CUDA path: NCCL activations on streams of their own, receive events, results by a copy to the host.

Skipped without two GPUs. It has not been run yet, because WavePP has been developed without GPUs.
"""

from __future__ import annotations

import pytest
import torch
from e2e.pool import ServerPool

from benchmark.client import ask_all
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig
from benchmark.workloads import mixed_workload
from sglang_wavepp.cpu.models.configurations import ModelKind

GPUS = torch.cuda.device_count()
# In float32, so that the tiny model's greedy tokens don't hang on the rounding of another batch shape.
ON_GPUS = ServerConfig(
    model=ModelKind.DENSE, wavepp=True, page=16, options=("--device", "cuda", "--dtype", "float32")
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, torch sees {GPUS}"),
]


@pytest.mark.parametrize("comm_overlap", ["1", "0"])
def test_same_tokens_on_two_gpus(pool: ServerPool, comm_overlap: str) -> None:
    prompts = mixed_workload(6, requests=40, longest=2_000).prompts
    with pool.private(ON_GPUS.stock().with_(pp=1)) as stock:
        expected = ask_all(stock.client, prompts, 1, rid_prefix="stock-")
    config = ON_GPUS.with_(environment=(("SGLANG_PP_COMM_OVERLAP", comm_overlap),))
    with pool.private(config) as wavepp:
        for name, concurrency in (("alone", 1), ("concurrent", 8), ("again", 1)):
            wrong = differences(
                prompts, ask_all(wavepp.client, prompts, concurrency, rid_prefix=f"{name}-"), expected
            )
            assert not wrong, f"{name}: " + "\n".join(map(str, wrong[:10]))
