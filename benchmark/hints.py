"""``python -m benchmark.hints``: what admission costs on one rank, without a model.

Sixty-four queued requests of 200,000 tokens ask what is cached, among a million cached tokens and more: the hint index,
and beside it a walk of SGLang's tree. Then what keeping the index costs, what evicting costs beside SGLang's Rust tree,
and how long the tree's mutex is held for a lease and its escrow. Every figure is given twice: as processor time of the
thread, and as wall time beside a second thread that never waits, with the interpreter's switch interval of the server.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from benchmark.figures import report, table
from benchmark.progress import Progress
from benchmark.servers import CHECKOUT


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.hints", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short prompts and small trees: shows in seconds that it works, its figures mean nothing",
    )
    parser.add_argument("--output", type=Path, default=CHECKOUT / "build" / "bench", metavar="DIR")
    parsed = parser.parse_args(arguments)
    # Imported here: these bring SGLang, which takes many seconds, and --help needs nothing of it.
    import torch

    from benchmark.hint_sections import QUICK_SIZES, STEPS, Sizes, measure
    from sglang_wavepp.rank.admission_thread import SWITCH_INTERVAL_S

    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    before = os.getloadavg()[0]
    figures, details = measure(QUICK_SIZES if parsed.quick else Sizes(), Progress(STEPS))
    details["machine"] = {
        "cpus": os.cpu_count(),
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "python": platform.python_version(),
        "switch_interval_s": sys.getswitchinterval(),
        "quick": parsed.quick,
    }
    parsed.output.mkdir(parents=True, exist_ok=True)
    path = parsed.output / "hints.json"
    path.write_text(report(figures, details))
    print()
    print(table(figures))
    print()
    print(f"Busy before: load {before:.1f} on {os.cpu_count()} CPUs. Everything in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
