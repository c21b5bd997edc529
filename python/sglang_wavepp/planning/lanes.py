"""Which lane a request decodes in.

A lane is the decode batch that passes through the pipeline as one wave. As many lanes as stages keep every stage busy;
more would split the same requests into more waves, each of which pays the stage's fixed cost again.
"""

from __future__ import annotations

from collections.abc import Sequence


def choose_lanes(loads: Sequence[int], joining: int) -> tuple[int, ...]:
    """Lanes for `joining` more requests, given the requests that each lane holds now.

    Each request goes to the emptiest lane, the first one among equals. So lanes that grow only by this rule never
    differ by more than one request.

    Raises:
        ValueError: there is no lane.
    """
    if not loads:
        raise ValueError("a server has at least one lane")
    now = list(loads)
    chosen: list[int] = []
    for _ in range(joining):
        lane = min(range(len(now)), key=now.__getitem__)
        now[lane] += 1
        chosen.append(lane)
    return tuple(chosen)
