"""Looks at a rank's admission after each round, for metrics and the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sglang_wavepp.telemetry.metrics import LEVELS, Exporter, Readings
from sglang_wavepp.telemetry.trace import ADMISSION, Timeline


@dataclass(slots=True)
class AdmissionObserver:
    """Hands readings on where somebody wants them.

    Attributes:
        read: the readings now.
        exporter: to Prometheus, None when metrics are off.
        timeline: trace; gets the levels that changed.
    """

    read: Callable[[], Readings]
    exporter: Exporter | None
    timeline: Timeline
    _traced: dict[str, float] = field(default_factory=dict)

    def after_round(self) -> None:
        """A round has closed on this rank."""
        if self.exporter is not None:
            self.exporter.refresh()
        if self.timeline.enabled:
            self._trace()

    def when_idle(self) -> None:
        """The rank has become idle: nothing will change for a while."""
        if self.exporter is not None:
            self.exporter.refresh(now=True)

    def _trace(self) -> None:
        levels = {
            name: float(value)
            for name, value in self.read().items()
            if name in LEVELS and not isinstance(value, Mapping)
        }
        if levels != self._traced:
            self._traced = levels
            self.timeline.counter("held for requests", ADMISSION, **levels)
