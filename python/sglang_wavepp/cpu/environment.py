"""Environment defaults, so that ``--device cpu`` is all that a user types. What the user set always wins."""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping

BIND_VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"

#: One thread per rank: ranks share the cores, and a second thread per rank would only fight the others.
PROCESS_DEFAULTS = {
    "SGLANG_USE_CPU_ENGINE": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def apply_process_defaults(environ: MutableMapping[str, str] | None = None) -> None:
    """Set the defaults that hold for every process of a server, this one and its children.

    torch has read ``OMP_NUM_THREADS`` by the time a platform is chosen, so this process is told directly.
    """
    target = os.environ if environ is None else environ
    for name, value in PROCESS_DEFAULTS.items():
        target.setdefault(name, value)
    if environ is None:
        import torch

        threads = os.environ["OMP_NUM_THREADS"].split(",")[0]
        if threads.isdigit() and int(threads) > 0:
            torch.set_num_threads(int(threads))


def apply_rank_defaults(ranks: int, environ: MutableMapping[str, str] | None = None) -> None:
    """Name a core for each of `ranks` ranks: SGLang requires one entry per rank on the CPU."""
    target = os.environ if environ is None else environ
    target.setdefault(BIND_VARIABLE, core_list(ranks, os.sched_getaffinity(0)))


def core_list(ranks: int, cores: Iterable[int]) -> str:
    """One core per rank, dealt in turn over the cores this process may use: 3 ranks on {0, 1} -> ``"0|1|0"``.

    Raises:
        ValueError: no rank or no core.
    """
    usable = sorted(cores)
    if ranks < 1 or not usable:
        raise ValueError(f"cannot deal {ranks} ranks over {len(usable)} cores")
    return "|".join(str(usable[rank % len(usable)]) for rank in range(ranks))
