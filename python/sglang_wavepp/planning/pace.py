"""How many seconds of work a wave should hold.

`n` waves of together `w` seconds of work, each with `C` seconds of its own, pass `P` equal stages in
`w + n C + (P - 1) (w / n + C)` seconds at best: waves of equal time. That is least when a wave holds
`sqrt(w C / (P - 1))` seconds of work. Then the stages lose as much time at the ends of the run as all waves cost
by themselves; smaller waves lose more to the second, larger ones to the first.

`w` is taken to be what this busy time has computed and still knows of: so waves grow while work keeps coming, and
nothing has to be guessed about the traffic.

A stage's host needs time for a wave too, beside the device: waves that take the device less time than that wait for
the hosts, so none is made smaller.

When each request that ends makes room for the next one, stages also starve if a request's last wave travels alone:
the other requests must have work for the `P - 1` waves behind it. No wave is larger than that allows, but none is
smaller than what serves the first request fastest.
"""

from __future__ import annotations

import math

from sglang_wavepp.planning.backlog import Backlog

COVER = 0.9
"""Share of the other requests' work that is counted on to follow a last wave: admission and hosts take time too."""


def wave_seconds(backlog: Backlog, *, per_wave: float, stages: int, host: float = 0.0) -> float:
    """Seconds of work for the next wave; infinite when waves cost nothing to fill.

    Args:
        per_wave: seconds that a wave costs by itself, `C`.
        stages: `P`.
        host: seconds that the host of a stage needs for a wave.
    """
    if stages == 1:
        return math.inf
    follow = stages - 1
    for_run = math.sqrt(backlog.run * per_wave / follow)
    for_head = math.sqrt(backlog.head * per_wave / follow)
    return max(for_head, min(for_run, COVER * backlog.others / follow), host - per_wave)
