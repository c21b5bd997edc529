"""``python -m benchmark.stock_unequal``: stock SGLang when one stage loses a prefix that the others keep.

Stock pipeline stages replicate one scheduler, so their caches must stay equal. Here the second stage drops what it can
evict after every few results, as a stage with less memory would, and the same prompts are asked again.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

from benchmark.client import RequestFailed, ask_all
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig, reference
from benchmark.servers import CHECKOUT, Server, ServerError
from benchmark.workloads import mixed_workload
from sglang_wavepp.cpu.models.configurations import ModelKind

RESULTS_BETWEEN_DROPS = 5
STAGE = 1


def serve(arguments: list[str]) -> None:
    """Run stock SGLang with the fault. Its ranks are forked, so they inherit what is changed here."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.runtime_context import get_parallel

    process = Scheduler.process_batch_result
    seen = 0

    def process_and_drop(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        result = process(self, *args, **kwargs)
        seen += 1
        if get_parallel().pp_rank == STAGE and seen % RESULTS_BETWEEN_DROPS == 0:
            slots = self.tree_cache.mamba_evictable_size() if self.tree_cache.supports_mamba() else 0
            tokens = self.tree_cache.full_evictable_size()
            self.tree_cache.evict(EvictParams(num_tokens=tokens, mamba_num=slots))
        return result

    Scheduler.process_batch_result = process_and_drop
    sys.argv = ["sglang.launch_server", *arguments]
    runpy.run_module("sglang.launch_server", run_name="__main__")


class StockWithUnequalCaches(ServerConfig):
    """Stock SGLang started through this module."""

    def command(self, **places: Any) -> list[str]:
        """The command line, with this module in the place of the launcher's."""
        python, dash_m, _, *rest = super().command(**places)
        return [python, dash_m, "benchmark.stock_unequal", "serve", *rest]


def main() -> int:
    """Ask the same prompts of a reference and of the faulty server, and say what came of it."""
    prompts = mixed_workload(6, requests=20, longest=1280).prompts
    folder = CHECKOUT / "build" / "stock-unequal"
    with Server(reference(ModelKind.HYBRID), folder / "reference") as stock:
        expected = ask_all(stock.client, prompts, 1)
    config = StockWithUnequalCaches(model=ModelKind.HYBRID, options=("--sleep-on-idle",))
    with Server(config, folder / "unequal") as unequal:
        for name, concurrency in (("alone", 1), ("again", 1), ("concurrent", 8)):
            try:
                answers = ask_all(unequal.client, prompts, concurrency)
            except (RequestFailed, ServerError) as failure:
                print(f"{name}: stock SGLang stopped answering: {failure}")
                print(unequal.log_tail(12))
                return 0
            wrong = differences(prompts, answers, expected)
            print(f"{name}: {len(wrong)} of {len(prompts)} answers wrong")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2:])
    elif sys.argv[1:]:
        sys.exit("usage: python -m benchmark.stock_unequal")
    else:
        sys.exit(main())
