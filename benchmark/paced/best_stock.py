"""Which stock arms a scouting run found to be the best."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.paced.measure import Setting
from benchmark.paced.records import Record, Records, RecordsError, by_cell_and_arm, usable

MOST = 2
"""How many stock arms of a scouting run are measured beside WavePP."""


def best_scouted(path: Path, setting: Setting, command: str) -> list[str]:
    """The best stock arms of a scouting run.

    Args:
        path: its JSON.
        setting: of the run that asks.
        command: scouts at that setting.

    Raises:
        ValueError: that was not scouted; the text says what to run.
    """
    try:
        records = Records(path).all()
    except RecordsError as error:
        raise ValueError(f"{error}; remove it and run: {command}") from error
    try:
        return best_stock(records, setting)
    except ValueError as error:
        raise ValueError(f"{error} ({path}); run: {command}") from error


def best_stock(records: Sequence[Record], setting: Setting) -> list[str]:
    """The stock arms with the highest geometric mean over the cells that all of them have, best first.

    What was measured with other stages, lengths or another device does not count, nor does what was rejected, and of
    several settings only the one that was measured last does. An arm that is left with nothing is named on stderr: it
    may be the best.

    Raises:
        ValueError: fewer stock arms than that may be used, or they have no cell in common.
    """
    alike = [each for each in records if _compares(each, setting)]
    if records and not alike:
        raise ValueError(
            f"nothing was scouted with {setting.pp} stages, lengths divided by {setting.shorten} and this device"
        )
    scouted = [each for each in alike if each.settings == alike[-1].settings]
    by_arm: dict[str, dict[tuple[str, int], float]] = {}
    for (workload, concurrency, arm), group in by_cell_and_arm(usable(scouted)).items():
        if arm.startswith("stock"):
            tok_s = statistics.median(record.tok_s for record in group)
            by_arm.setdefault(arm, {})[workload, concurrency] = tok_s
    if len(by_arm) < MOST:
        raise ValueError(
            f"{', '.join(by_arm) or 'no stock arm'} was scouted that may be used, of at least {MOST}"
        )
    rejected = {each.arm for each in scouted if each.arm.startswith("stock")} - set(by_arm)
    if rejected:
        print(
            f"all that was scouted of {', '.join(sorted(rejected))} was rejected: not among the best {MOST}",
            file=sys.stderr,
        )
    common = set.intersection(*(set(cells) for cells in by_arm.values()))
    if not common:
        raise ValueError(
            f"{', '.join(by_arm)} have no cell in common that may be used and has the settings of the last scouting run"
        )
    means = {arm: statistics.geometric_mean([cells[c] for c in common]) for arm, cells in by_arm.items()}
    best = sorted(means, key=lambda arm: -means[arm])[:MOST]
    print(f"best of {len(means)} scouted stock arms in {_names(common)}: {', '.join(best)}", file=sys.stderr)
    partly = {cell for cells in by_arm.values() for cell in cells} - common
    if partly:
        print(f"not counted, since an arm lacks them: {_names(partly)}", file=sys.stderr)
    return best


def _names(cells: set[tuple[str, int]]) -> str:
    return " ".join(f"{workload}:{concurrency}" for workload, concurrency in sorted(cells))


def _compares(record: Record, setting: Setting) -> bool:
    """Whether it was measured with these stages, lengths and device; an old record doesn't say which device."""
    return (record.pp, record.shorten, record.wave_tokens, record.model) == (
        setting.pp,
        setting.shorten,
        setting.wave_tokens,
        setting.model,
    )
