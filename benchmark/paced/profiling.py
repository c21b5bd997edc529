"""A profile of the LOOP's thread by function, for finding what is hot; it slows the host, so measure nothing else."""

from __future__ import annotations

import cProfile
import time
from pathlib import Path


class LoopProfile:
    """CPU time by function of the thread that calls `wave`, in ``FOLDER/stageN.pstats``."""

    EVERY = 8
    """Waves between two writes of the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profile: cProfile.Profile | None = None
        self._waves = 0

    def wave(self, stage: int) -> None:
        """A wave was launched; the profile begins with the first."""
        if self._profile is None:
            self._profile = cProfile.Profile(time.thread_time)
            self._profile.enable()
            return
        self._waves += 1
        if self._waves % self.EVERY == 0:
            self._profile.disable()
            self._profile.dump_stats(str(self._folder / f"stage{stage}.pstats"))
            (self._folder / f"stage{stage}.waves").write_text(f"{self._waves}\n")
            self._profile.enable()
