"""Wakes a thread that waits in a poller, from any other thread."""

from __future__ import annotations

import os


class Wake:
    """A file descriptor that is readable from `signal()` to `clear()`.

    Register `fileno()` in a `zmq.Poller`, which then reports that number. Signals in between count as one, so
    the woken thread calls `clear()` first and looks for work afterwards, or it misses work.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def signal(self) -> None:
        """Make the descriptor readable; never blocks."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable again, signalled or not."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back; nobody may use the object afterwards."""
        os.close(self._fd)
