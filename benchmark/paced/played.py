"""One play of a cell by one client, and the table of the plays of both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from benchmark.interleaved import Spread, ratio
from benchmark.paced.text_table import text_table

OURS, BENCH = "ours", "bench_serving"
_HEAD = ("cell", "arm", "client", "tok/s", "p50 s", "p95 s", "cached tokens", "waited for a core")


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One play of a cell.

    Attributes:
        client: ``ours`` or ``bench_serving``.
        tok_s: input tokens a second.
        p50_s, p95_s: seconds to the first token, which is the only one.
        cached_tokens: reused in spite of the flush before; 0 when the prompts shared nothing.
        waited: for a core, share of the time that a stage computed, of the stage that waited most; other benchmarks
            reject what is above 5%.
    """

    cell: str
    arm: str
    client: str
    repeat: int
    requests: int
    tok_s: float
    p50_s: float
    p95_s: float
    cached_tokens: int
    scale: float
    waited: float = 0.0


_VALUES: tuple[Callable[[Played], float], ...] = (
    lambda each: each.tok_s,
    lambda each: each.p50_s,
    lambda each: each.p95_s,
)
_WORST: tuple[Callable[[Played], float], ...] = (lambda each: each.cached_tokens, lambda each: each.waited)


def played_table(played: Sequence[Played]) -> str:
    """Per cell and arm both clients below each other, and per cell the last arm divided by the first, pair by pair."""
    rows = []
    for cell in dict.fromkeys(each.cell for each in played):
        groups: dict[tuple[str, str], list[Played]] = {}
        for each in sorted(played, key=lambda each: each.repeat):
            if each.cell == cell:
                groups.setdefault((each.arm, each.client), []).append(each)
        arms = list(dict.fromkeys(each.arm for each in played if each.cell == cell))
        for arm, client in itertools.product(arms, (OURS, BENCH)):
            group = groups[arm, client]
            spreads = [Spread.of([value(each) for each in group]) for value in _VALUES]
            figures = [spread.text(digits) for spread, digits in zip(spreads, (0, 2, 2), strict=True)]
            cached, waited = (max(value(each) for each in group) for value in _WORST)
            rows.append((cell, arm, client, *figures, f"{cached:,}", f"{waited:.0%}"))
        for client in (OURS, BENCH) if len(arms) > 1 else ():
            ours, theirs = groups[arms[-1], client], groups[arms[0], client]
            spreads = [ratio([v(each) for each in ours], [v(each) for each in theirs]) for v in _VALUES]
            rows.append(
                (cell, f"{arms[-1]} / {arms[0]}", client, *(spread.text(2) for spread in spreads), "", "")
            )
    return text_table(_HEAD, rows)
