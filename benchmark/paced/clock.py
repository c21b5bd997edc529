"""One clock for all stages: CLOCK_MONOTONIC counts the same in every process of a machine."""

from __future__ import annotations

import time

now = time.monotonic


def sleep_until(moment: float) -> None:
    """Sleep with the interpreter lock released until the clock shows `moment`."""
    while (left := moment - now()) > 0:
        time.sleep(left)
