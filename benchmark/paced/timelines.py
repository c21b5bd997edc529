"""Timelines of paced runs: for each cell the waves of all arms on all stages, below each other on one time axis.

They are drawn from what the paced device wrote. A trace of WavePP (``--wavepp-trace``) would show when hosts launched,
which on an asynchronous device is not when it computed, and stock SGLang has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.paced import recorder
from benchmark.paced.analysis import rid_of
from benchmark.paced.recorder import Forward
from benchmark.paced.records import Record
from sglang_wavepp.planning.spans import PlannedSpan
from sglang_wavepp.simulate.outcome import Outcome, Wave
from sglang_wavepp.simulate.picture import svg_timeline


@dataclass(frozen=True, slots=True)
class Play:
    """One attempt at one repeat of a cell on an arm: its forwards, by stage."""

    repeat: int
    attempt: int
    stages: list[list[Forward]]

    @property
    def words(self) -> str:
        """Counted from one, as progress does; an attempt is named where it was not the first."""
        again = f", attempt {self.attempt + 1}" if self.attempt else ""
        return f"repeat {self.repeat + 1}{again}"


def draw_timelines(records: Iterable[Record], traces: dict[str, Path], out: Path) -> list[Path]:
    """Write the last play of each cell on each arm as ``STEM-timeline-CELL.svg`` beside the run's JSON.

    Figures are those of the same repeat. A play that a stage has written nothing of is left out.

    Args:
        traces: folder of the stages' traces by arm, of the arms that this run has started; other arms are left out.
        out: the JSON.
    """
    forwards = {
        arm: recorder.read(folder) for arm, folder in traces.items() if recorder.file_of(folder, 0).exists()
    }
    cells: dict[str, dict[tuple[str, int], Record]] = {}
    for record in records:
        cells.setdefault(record.cell, {})[record.arm, record.repeat] = record
    paths = []
    for cell, kept in cells.items():
        runs = [
            (f"{cell} {arm}, {played.words}", outcome_of(played.stages, kept[arm, played.repeat]))
            for arm in forwards
            if (played := last_play(forwards[arm], cell)) and (arm, played.repeat) in kept
        ]
        if runs:
            paths.append(out.with_name(f"{out.stem}-timeline-{cell.replace(':', '-c')}.svg"))
            paths[-1].write_text(svg_timeline(runs))
    return paths


def last_play(stages: Sequence[Sequence[Forward]], cell: str) -> Play | None:
    """A cell's last repeat and attempt, without the forwards that filled the cache before.

    None where the cell was not played, or a stage has written nothing of that play.
    """
    plays = {_play(rid, cell) for forward in stages[0] for rid in forward.rids} - {None}
    if not plays:
        return None
    last = max(play for play in plays if play)
    found = [
        [each for each in stage if any(_play(rid, cell) == last for rid in each.rids)] for stage in stages
    ]
    return Play(*last, found) if all(found) else None


def outcome_of(stages: Sequence[Sequence[Forward]], record: Record) -> Outcome:
    """As the simulator would tell it, in seconds from the first forward on; figures are those of the record.

    Args:
        stages: the same waves on each, one at least.
    """
    begin = stages[0][0].start
    waves = tuple(
        Wave(
            spans=tuple(
                PlannedSpan(rid.rpartition("-")[2], start, length)
                for rid, start, length in zip(first.rids, first.prefixes, first.tokens, strict=True)
            ),
            launched=first.launched - begin,
            starts=tuple(each.start - begin for each in (first, *others)),
            ends=tuple(each.end - begin for each in (first, *others)),
        )
        for first, *others in zip(*stages)  # noqa: B905  a stage may not have written its last forward yet
    )
    return Outcome(
        tok_s=record.tok_s,
        p50_s=record.p50_s,
        p95_s=record.p95_s,
        idle=record.idle,
        waves=waves,
        seconds=max(wave.ends[-1] for wave in waves),
        times=(),
    )


def _play(rid: str, cell: str) -> tuple[int, int] | None:
    """Repeat and attempt of a measured request of this cell."""
    head = f"{cell.replace(':', '.')}-"
    name = rid_of(rid)
    if not name.startswith(head):
        return None
    repeat, attempt, *rest = name.removeprefix(head).split("-")
    return None if rest[0].startswith("p") else (int(repeat), int(attempt))
