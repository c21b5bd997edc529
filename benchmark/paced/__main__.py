"""``python -m benchmark.paced``: stock SGLang and WavePP on a paced device, the arms in turn.

Everything of the servers is real but the forward of a stage, so this measures scheduling and not kernels. A run that
was interrupted goes on where it was. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.client import RequestFailed
from benchmark.paced import tables
from benchmark.paced.client_comparison import compare_clients
from benchmark.paced.measure import Setting
from benchmark.paced.options import arms_of, loads_of, parser, pool_of, repeats_of, setting_of
from benchmark.paced.pictures import draw
from benchmark.paced.ratios import ratio_table, ratios, write_ratios
from benchmark.paced.records import Record, Records, usable
from benchmark.paced.run import Run
from benchmark.paced.simulated import simulated
from benchmark.paced.timelines import draw_timelines
from benchmark.servers import CHECKOUT, ServerError
from benchmark.serving import BenchError


def _show(kept: Sequence[Record], setting: Setting, rounds: int, out: Path, traces: dict[str, Path]) -> None:
    found = ratios(kept, lambda record: simulated(record, setting, rounds=rounds))
    path = out.with_name(f"{out.stem}-ratios.json")
    write_ratios(found, path)
    print(f"{ratio_table(found)}\n\n  {path}")
    for picture in [*draw(kept, out), *draw_timelines(kept, traces, out)]:
        print(f"  {picture}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every figure may be used."""
    asked = parser(about=__doc__).parse_args(arguments)
    folder = CHECKOUT / "build" / "bench"
    name = "paced.json" if asked.what == "grid" else f"paced-{asked.what}.json"
    out = Path(asked.out) if asked.out else folder / name
    try:
        loads, arms = loads_of(asked), arms_of(asked, folder)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if asked.fresh:
        out.unlink(missing_ok=True)
    setting, pool, repeats = setting_of(asked), pool_of(asked), repeats_of(asked)
    try:
        if asked.what == "serving":
            print(compare_clients(arms, loads, setting, out, pool=pool, repeats=repeats))
            print(f"\n  {out}")
            return 0
        records = Records(out)
        run = Run(arms, setting, records, out.parent / "paced", pool=pool)
        run.run(loads, repeats)
    except (RequestFailed, ServerError, BenchError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped" + ("" if asked.what == "serving" else "; the same command goes on from here"))
        return 130
    kept = records.of(setting.digest)
    print(tables.table(kept))
    print(f"\n  {out}")
    _show(kept, setting, asked.rounds, out, run.traces)
    return 0 if len(usable(kept)) == len(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
