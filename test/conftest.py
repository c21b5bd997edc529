"""Ends a test that hangs, with its name and the line where it stood, so that a run always ends by itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import settings

SERVER_TEST_SECONDS = 900
SLOW_TEST_SECONDS = 600
OTHER_TEST_SECONDS = 240

# How long one example takes says how busy the machine is, not whether the code is right.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give each test, with its fixtures, a limited time. A full run's cells may take as long as they need."""
    if item.get_closest_marker("full") is not None:
        return (yield)
    seconds = OTHER_TEST_SECONDS
    if item.get_closest_marker("slow") is not None:
        seconds = SLOW_TEST_SECONDS
    if "e2e" in item.nodeid.split("/"):
        seconds = SERVER_TEST_SECONDS

    def hangs(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"{item.nodeid} has not ended within {seconds} s")

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
