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
from benchmark.paced.checks import see_chunks_are_pages, see_prompts_fit
from benchmark.paced.client_comparison import compare_clients
from benchmark.paced.measure import Setting
from benchmark.paced.options import arms_of, loads_of, parser, pool_of, repeats_of, setting_of
from benchmark.paced.pictures import draw
from benchmark.paced.ratios import ratio_table, ratios, unpaired, write_ratios
from benchmark.paced.records import Record, Records, RecordsError, usable
from benchmark.paced.run import Run
from benchmark.paced.simulated import simulated
from benchmark.paced.timelines import draw_timelines
from benchmark.servers import CHECKOUT, ServerError
from benchmark.serving import BenchError


def _show(kept: Sequence[Record], setting: Setting, rounds: int, out: Path, traces: dict[str, Path]) -> None:
    found = ratios(kept, lambda record: simulated(record, setting, rounds=rounds))
    path = out.with_name(f"{out.stem}-ratios.json")
    write_ratios(found, path)
    print(f"{ratio_table(found, unpaired(kept))}\n\n  {path}")
    for picture in [*draw(kept, out), *draw_timelines(kept, traces, out)]:
        print(f"  {picture}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every figure may be used."""
    folder = CHECKOUT / "build" / "bench"
    try:
        asked = parser(about=__doc__).parse_args(arguments)
        name = "paced.json" if asked.what == "grid" else f"paced-{asked.what}.json"
        out = Path(asked.out) if asked.out else folder / name
        setting, pool, repeats = setting_of(asked), pool_of(asked), repeats_of(asked)
        loads, arms = loads_of(asked), arms_of(asked, setting, folder)
        see_prompts_fit(loads, shorten=setting.shorten, pool=pool)
        see_chunks_are_pages(arms, wave_tokens=setting.wave_tokens)
        if asked.fresh:  # only now: an argument that isn't right costs no figures
            out.unlink(missing_ok=True)
        # What the comparison of clients writes are no records, and nothing is continued there.
        records = None if asked.what == "serving" else Records(out)
    except RecordsError as error:
        print(f"error: {error}; --fresh forgets it", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        if records is None:
            print(compare_clients(arms, loads, setting, out, pool=pool, repeats=repeats))
            print(f"\n  {out}")
            return 0
        run = Run(arms, setting, records, out.parent / "paced", pool=pool, together=asked.together)
        run.run(loads, repeats)
    except (RequestFailed, ServerError, BenchError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped" + ("" if records is None else "; the same command goes on from here"))
        return 130
    kept = records.of(setting.digest)
    print(tables.table(kept))
    print(f"\n  {out}")
    _show(kept, setting, asked.rounds, out, run.traces)
    return 0 if len(usable(kept)) == len(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
