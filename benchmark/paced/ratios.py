"""WavePP against the best stock arm of each cell, as it was measured and as the simulator says."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmark.interleaved import Spread, ratio
from benchmark.paced.records import Record, usable
from benchmark.paced.text_table import text_table
from sglang_wavepp.simulate.outcome import Outcome

Simulated = Callable[[Record], Outcome | None]
_Group = Sequence[Record]
_Pairs = Sequence[tuple[Record, Record]]
_HEAD = (
    "cell",
    "arm",
    "best stock arm measured",
    "pairs",
    "tok/s",
    "p50",
    "p95",
    "simulated tok/s",
    "p50",
    "p95",
    "left out",
)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One WavePP arm in one cell, divided by the stock arm with the highest median throughput in repeats of both.

    Attributes:
        cell: such as ``reuse131:4``.
        pairs: repeats that may be used of both arms; each is one ratio.
        not_in_turn: pairs whose arms did not take turns: one was measured in another group of servers, or again in
            another run. What disturbed the machine may have disturbed one of them.
        tok_s, p50, p95: of throughput, and of seconds to the first token (below 1: WavePP is faster).
        simulated_tok_s, simulated_p50, simulated_p95: of the same two arms, None where they can't be simulated.
        left_out: other stock arms whose median of everything measured, rejected or not, is above that of the arm used,
            and those of which everything was rejected: the ratio may be too good. None when there are none.
    """

    cell: str
    arm: str
    stock: str
    pairs: int
    tok_s: Spread
    p50: Spread
    p95: Spread
    simulated_tok_s: float | None = None
    simulated_p50: float | None = None
    simulated_p95: float | None = None
    left_out: str | None = None
    not_in_turn: int = 0


def ratios(records: Iterable[Record], simulated: Simulated = lambda record: None) -> list[Ratio]:
    """One for each cell and WavePP arm that has a repeat in common with a stock arm, both of which may be used.

    Args:
        simulated: the simulator's run of a record's arm and cell.
    """
    return [
        _ratio(pairs, _left_out(stock, pairs), simulated) for _, stock, pairs in _rivals(records) if pairs
    ]


def unpaired(records: Iterable[Record]) -> list[str]:
    """Cells and WavePP arms that stand beside stock arms and have no ratio, such as ``cold131:8 wavepp``."""
    return [f"{ours[0].cell} {ours[0].arm}" for ours, stock, pairs in _rivals(records) if stock and not pairs]


def ratio_table(found: Sequence[Ratio], without: Sequence[str] = ()) -> str:
    """One row a ratio, for people.

    Args:
        without: cells and arms that have none.
    """
    missing = f"\nNo ratio, since no repeat of both may be used: {', '.join(without)}" if without else ""
    if not found:
        return (
            f"\nNo cell has a repeat of WavePP and of a stock arm that may both be used: no ratios.{missing}"
        )
    rows = [
        (
            each.cell,
            each.arm,
            each.stock,
            f"{each.pairs}" + (f", {each.not_in_turn} not in turn" if each.not_in_turn else ""),
            *(spread.text(2) for spread in (each.tok_s, each.p50, each.p95)),
            *(
                "-" if value is None else f"{value:.2f}"
                for value in (each.simulated_tok_s, each.simulated_p50, each.simulated_p95)
            ),
            each.left_out or "-",
        )
        for each in found
    ]
    title = "WavePP / best stock arm measured: median (least-most) over the repeats, pair by pair"
    return f"\n{title}\n{text_table(_HEAD, rows)}{missing}"


def write_ratios(found: Sequence[Ratio], path: Path) -> None:
    """As JSON: a list of ratios."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(found)), indent=1) + b"\n")


def _rivals(records: Iterable[Record]) -> Iterator[tuple[_Group, list[_Group], _Pairs]]:
    """By cell and WavePP arm: its records, those of all stock arms, and the pairs with the best of these."""
    cells: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        cells.setdefault(record.cell, {}).setdefault(record.arm, []).append(record)
    for arms in cells.values():
        stock: list[_Group] = [group for name, group in arms.items() if _is_stock(name)]
        for ours in (group for name, group in arms.items() if not _is_stock(name)):
            yield ours, stock, max((_pairs(ours, theirs) for theirs in stock), key=_rank, default=[])


def _is_stock(arm: str) -> bool:
    return arm.startswith("stock")


def _pairs(ours: _Group, theirs: _Group) -> _Pairs:
    """The repeats that may be used of both."""
    others = {record.repeat: record for record in usable(theirs)}
    mine = sorted(usable(ours), key=lambda record: record.repeat)
    return [(record, others[record.repeat]) for record in mine if record.repeat in others]


def _rank(pairs: _Pairs) -> float:
    """Of a stock arm, by its throughput in these repeats; without any it is last."""
    return _median_tok_s(theirs for _, theirs in pairs) if pairs else -1.0


def _left_out(stock: Iterable[_Group], used: _Pairs) -> str | None:
    """Stock arms that may be faster than the one used, fastest first: they were when all that was measured counts, or
    nothing of them may be used."""
    maybe = {
        group[0].arm: (
            _median_tok_s(group),
            "other repeats" if len(usable(group)) == len(group) else "rejected",
        )
        for group in stock
        if group[0].arm != used[0][1].arm and (_median_tok_s(group) > _rank(used) or not usable(group))
    }
    ordered = sorted(maybe.items(), key=lambda item: -item[1][0])
    return ", ".join(f"{arm} ({why}, {tok_s:,.0f} tok/s)" for arm, (tok_s, why) in ordered) or None


def _ratio(pairs: _Pairs, left_out: str | None, simulated: Simulated) -> Ratio:
    def spread(value: Callable[[Record], float]) -> Spread:
        return ratio([value(ours) for ours, _ in pairs], [value(theirs) for _, theirs in pairs])

    first, rival = pairs[0]
    mine, other = simulated(first), simulated(rival)
    pair = None if mine is None or other is None else (mine, other)
    return Ratio(
        cell=first.cell,
        arm=first.arm,
        stock=rival.arm,
        pairs=len(pairs),
        tok_s=spread(lambda record: record.tok_s),
        p50=spread(lambda record: record.p50_s),
        p95=spread(lambda record: record.p95_s),
        simulated_tok_s=pair[0].tok_s / pair[1].tok_s if pair else None,
        simulated_p50=pair[0].p50_s / pair[1].p50_s if pair else None,
        simulated_p95=pair[0].p95_s / pair[1].p95_s if pair else None,
        left_out=left_out,
        not_in_turn=sum(ours.group != theirs.group for ours, theirs in pairs),
    )


def _median_tok_s(records: Iterable[Record]) -> float:
    return statistics.median(record.tok_s for record in records)
