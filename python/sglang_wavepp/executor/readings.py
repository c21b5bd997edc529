"""What a rank's metrics read: its holdings, its rounds and its guard against wrong snapshots."""

from __future__ import annotations

from sglang_wavepp.cache.holdings import Holdings
from sglang_wavepp.cache.lease import LeaseAdmission
from sglang_wavepp.cache.snapshot_guard import DROPS
from sglang_wavepp.planning.mpu import MpuPlanner
from sglang_wavepp.planning.static import StaticPlanner
from sglang_wavepp.rank.rounds import FollowingRounds, LeadingRounds
from sglang_wavepp.telemetry.metrics import Readings


def readings(
    holdings: Holdings, rounds: LeadingRounds | FollowingRounds, planner: MpuPlanner | StaticPlanner
) -> Readings:
    """The readings now, under the names of `telemetry.metrics.METRICS`; called from any thread."""
    with holdings.mutex:
        figures = holdings.figures
        found: dict[str, float | dict[str, float]] = {
            "leases_total": figures.leases,
            "lease_trims_total": figures.trims,
            "reused_tokens_total": figures.reused_tokens,
            "no_room_total": {short.value: count for short, count in figures.short.items()},
            "leases_held": holdings.leased,
            "promised_requests": holdings.held,
            "reserved_tokens": holdings.reserved_tokens,
            "snapshots": holdings.snapshots,
            "snapshots_dropped_total": DROPS.dropped,
        }
        if isinstance(holdings, LeaseAdmission):
            book = holdings.escrows
            found |= {
                "hints_total": holdings.hint_figures.hints,
                "hint_probes_total": holdings.probes,
                "hint_stale_tokens_total": holdings.hint_figures.stale_tokens,
                "victim_tokens_substituted_total": book.figures.substituted,
                "victim_tokens_exchanged_total": book.figures.exchanged,
                "victim_tokens_evicted_total": book.figures.evicted,
                "victim_tokens_spared_total": book.figures.spared,
                "victims": book.victims,
                "victim_tokens": book.victim_tokens,
            }
    if isinstance(rounds, LeadingRounds):
        found |= {
            "attempts_total": {verdict.value: count for verdict, count in rounds.outcomes.items()},
            "rounds_total": rounds.closed,
            "in_admission": rounds.in_admission,
            "waiting": rounds.waiting,
            "held_back": rounds.holds_back,
            "wave_budget_tokens": planner.budget,
        }
        if isinstance(planner, MpuPlanner) and (cost := planner.cost) is not None:
            found["wave_cost_seconds"] = {
                "wave": cost.per_wave,
                "token": cost.per_token,
                "pair": cost.per_pair,
                "host": planner.host,
            }
    return found
