"""What a rank's admission comes to, for Prometheus.

One table says every metric. A rank counts in plain objects; what changed is handed to Prometheus when a round has
closed or the rank has become idle, at most twice a second. SGLang's own `--enable-metrics` turns it on, and the numbers
appear on the same `/metrics` page, one series per rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

PREFIX = "sglang_wavepp:"
INTERVAL_S = 0.5
"""Least seconds between two hand-overs to Prometheus."""

Readings = Mapping[str, "float | Mapping[str, float]"]
"""A value per metric of the table, or one per value of its label."""


class Kind(Enum):
    """How a metric behaves: a total only grows, a level goes up and down."""

    TOTAL = "total"
    LEVEL = "level"


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table.

    Attributes:
        name: without the prefix.
        meaning: for people; `/metrics` shows it.
        label: what its series differ by beside the rank, None when it has one.
    """

    name: str
    kind: Kind
    meaning: str
    label: str | None = None


METRICS: tuple[Metric, ...] = (
    Metric(
        "hints_total", Kind.TOTAL, "Hints given: how far a prompt could be reused, without touching the tree."
    ),
    Metric("hint_probes_total", Kind.TOTAL, "Look-ups in the hint index."),
    Metric("hint_stale_tokens_total", Kind.TOTAL, "Tokens that a hint promised and the lease did not find."),
    Metric("leases_total", Kind.TOTAL, "Prefixes pinned with room promised for the rest."),
    Metric("lease_trims_total", Kind.TOTAL, "Leases cut down because another rank has less."),
    Metric("reused_tokens_total", Kind.TOTAL, "Tokens of leases that became the start of a request."),
    Metric("no_room_total", Kind.TOTAL, "Attempts that found no room on this rank.", "short_of"),
    Metric(
        "victim_tokens_substituted_total", Kind.TOTAL, "Tokens of victims that were claimed and replaced."
    ),
    Metric(
        "victim_tokens_exchanged_total",
        Kind.TOTAL,
        "Tokens of victims that a waiting request came to name and that others were chosen for.",
    ),
    Metric("victim_tokens_evicted_total", Kind.TOTAL, "Tokens of victims that went for whom they were held."),
    Metric(
        "victim_tokens_spared_total", Kind.TOTAL, "Tokens of victims that stayed, as room had become free."
    ),
    Metric("leases_held", Kind.LEVEL, "Leases held now."),
    Metric("promised_requests", Kind.LEVEL, "Requests that room is promised to, leased or running."),
    Metric("reserved_tokens", Kind.LEVEL, "Tokens promised and not drawn."),
    Metric("victims", Kind.LEVEL, "Cached nodes that are held as victims."),
    Metric("victim_tokens", Kind.LEVEL, "Tokens of those nodes that are held."),
    Metric("snapshots", Kind.LEVEL, "Recurrent snapshots in the cache, a slot each."),
    Metric("attempts_total", Kind.TOTAL, "Attempts by outcome (rank 0).", "outcome"),
    Metric("rounds_total", Kind.TOTAL, "Rounds closed (rank 0)."),
    Metric("in_admission", Kind.LEVEL, "Requests announced and not admitted (rank 0)."),
    Metric("waiting", Kind.LEVEL, "Requests that wait for capacity (rank 0)."),
    Metric(
        "held_back", Kind.LEVEL, "Requests that wait for a prefix which another one is computing (rank 0)."
    ),
    Metric("wave_budget_tokens", Kind.LEVEL, "Tokens that the last planned wave might have (rank 0)."),
    Metric(
        "wave_cost_seconds",
        Kind.LEVEL,
        "What the planner takes a wave to cost, by part: wave, token, pair of tokens, host (rank 0, planner mpu).",
        "part",
    ),
    Metric(
        "snapshots_dropped_total",
        Kind.TOTAL,
        "Recurrent snapshots dropped because their depth was off the page; must stay 0.",
    ),
)
"""Every metric of a rank; a rank that has no reading of one shows no series of it."""

LEVELS = frozenset(metric.name for metric in METRICS if metric.kind is Kind.LEVEL)
"""Names of those that go up and down."""


def markdown_table() -> str:
    """The table for the documentation, a line a metric."""
    rows = ["| metric | kind | meaning |", "|---|---|---|"]
    for metric in METRICS:
        name = metric.name if metric.label is None else f"{metric.name}{{{metric.label}}}"
        kind = "counter" if metric.kind is Kind.TOTAL else "gauge"
        rows.append(f"| `{name}` | {kind} | {metric.meaning} |")
    return "\n".join(rows)


class Exporter:
    """Hands a rank's readings to Prometheus.

    Args:
        labels: of every series of this rank.
        read: the readings now; names are those of `METRICS`.
        clock: seconds; for tests.
        registry: Prometheus's, None for its default.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        read: Callable[[], Readings],
        *,
        clock: Callable[[], float] = time.monotonic,
        registry: Any = None,
    ) -> None:
        # Imported here: SGLang sets the folder for several processes in the environment first.
        import prometheus_client

        self._labels = dict(labels)
        self._read = read
        self._clock = clock
        self._next = float("-inf")
        self._lock = threading.Lock()  # rounds and the end of work are noticed by different threads
        self._shown: dict[tuple[str, str | None], float] = {}
        self._series: dict[str, Any] = {}
        where = {} if registry is None else {"registry": registry}
        for metric in METRICS:
            names = [*labels, *([metric.label] if metric.label else [])]
            made: Any
            if metric.kind is Kind.TOTAL:
                made = prometheus_client.Counter(PREFIX + metric.name, metric.meaning, names, **where)
            else:
                made = prometheus_client.Gauge(
                    PREFIX + metric.name, metric.meaning, names, multiprocess_mode="mostrecent", **where
                )
            self._series[metric.name] = made

    def refresh(self, *, now: bool = False) -> None:
        """Hand over what changed, unless that was done a moment ago.

        Args:
            now: even then.

        Raises:
            KeyError: a reading that the table doesn't know.
        """
        with self._lock:
            clock = self._clock()
            if clock < self._next and not now:
                return
            self._next = clock + INTERVAL_S
            table = {metric.name: metric for metric in METRICS}
            for name, value in self._read().items():
                metric = table[name]
                parts = value if isinstance(value, Mapping) else {None: value}
                for part, number in parts.items():
                    self._show(metric, part, float(number))

    def _show(self, metric: Metric, part: str | None, number: float) -> None:
        before = self._shown.get((metric.name, part))
        if before == number:
            return
        self._shown[metric.name, part] = number
        labels = self._labels if metric.label is None else {**self._labels, metric.label: str(part)}
        series = self._series[metric.name].labels(**labels)
        if metric.kind is Kind.TOTAL:
            series.inc(number - (before or 0.0))
        else:
            series.set(number)
