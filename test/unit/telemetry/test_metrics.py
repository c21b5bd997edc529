from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sglang_wavepp.telemetry.metrics import METRICS, PREFIX, Exporter, Kind

pytestmark = pytest.mark.unit


class Rank:
    """Readings and a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.readings: dict[str, float | dict[str, float]] = {}
        self.registry = CollectorRegistry()
        self.exporter = Exporter(
            {"pp_rank": "1"}, lambda: self.readings, clock=lambda: self.now, registry=self.registry
        )

    def page(self) -> dict[str, float]:
        text = generate_latest(self.registry).decode()
        lines = [line for line in text.splitlines() if line.startswith(PREFIX)]
        return {
            name.removeprefix(PREFIX): float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines)
            if "_created" not in name
        }


def test_totals_grow_by_what_came_and_levels_follow() -> None:
    rank = Rank()
    rank.readings = {"leases_total": 3, "leases_held": 2}
    rank.exporter.refresh()
    assert rank.page() == {'leases_total{pp_rank="1"}': 3, 'leases_held{pp_rank="1"}': 2}
    rank.now += 10
    rank.readings = {"leases_total": 5, "leases_held": 0}
    rank.exporter.refresh()
    assert rank.page() == {'leases_total{pp_rank="1"}': 5, 'leases_held{pp_rank="1"}': 0}


def test_a_labelled_metric_has_a_series_a_value() -> None:
    rank = Rank()
    rank.readings = {"no_room_total": {"tokens": 4, "recurrent_slots": 1}}
    rank.exporter.refresh()
    assert rank.page() == {
        'no_room_total{pp_rank="1",short_of="tokens"}': 4,
        'no_room_total{pp_rank="1",short_of="recurrent_slots"}': 1,
    }


def test_it_hands_over_at_most_twice_a_second_but_always_the_end() -> None:
    rank = Rank()
    rank.readings = {"leases_held": 1}
    rank.exporter.refresh()
    rank.now += 0.4
    rank.readings = {"leases_held": 2}
    rank.exporter.refresh()
    assert rank.page() == {'leases_held{pp_rank="1"}': 1}
    rank.exporter.refresh(now=True)
    assert rank.page() == {'leases_held{pp_rank="1"}': 2}


def test_a_reading_that_the_table_does_not_know_is_an_error() -> None:
    rank = Rank()
    rank.readings = {"lease": 1}
    with pytest.raises(KeyError, match="lease"):
        rank.exporter.refresh()


def test_names_say_whether_a_metric_only_grows() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.name.endswith("_total") == (metric.kind is Kind.TOTAL) for metric in METRICS)
