"""Protocols that somebody could have built instead, and what random histories show of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from model.oracle.config import FAMILIES
from model.oracle.rules import Rules, Violation
from model.oracle.simulation import Simulation

PATIENCE = 1500
MOST_PASSED = 3
"""Later requests that are admitted while an earlier one only waits: none but those that were being lowered already when
the earlier one was retracted."""


@dataclass(frozen=True)
class Variant:
    """Rules that differ, and where the difference shows first.

    Attributes:
        family: of configurations.
        first: seed at which a search begins.
    """

    name: str
    rules: Rules
    family: str = "mixed"
    first: int = 0


MUTANTS = (
    Variant("a victim's held child is an error", Rules(victims="concrete", held_child="error"), first=34),
    Variant(
        "escrows look only at commit", Rules(victims="concrete", claims="recheck_at_commit"), "growing", 144
    ),
    Variant(
        "escrows look only at commit, with headroom on pins",
        Rules(victims="concrete", claims="recheck_at_commit", headroom=2, headroom_counts="pins"),
        "growing",
        144,
    ),
    Variant("headroom stops a lone request", Rules(headroom=2, lone_ignores_headroom=False)),
    Variant("a lone request waits", Rules(lone_goes_lower=False), first=2),
    Variant("later requests may pass", Rules(order="bypass"), first=61),
    Variant("slots are what is free just now", Rules(slots="dynamic"), first=879),
    Variant("a trim keeps its demand", Rules(recompute_demand=False), first=17),
    Variant("every refused extension counts", Rules(failed_extension_counts="always"), "growing", 87),
    Variant(
        "refused extensions wait only for retractions",
        Rules(failed_extension_counts="after_retractions"),
        "growing",
        87,
    ),
    Variant(
        "refused extensions count beside trims",
        Rules(victims="concrete", refusals_wait_for_trims=False),
        "warm",
        10_003_751,
    ),
    Variant("all aborts are commands", Rules(aborts="commands")),
    Variant(
        "all aborts are commands, which wait for nothing",
        Rules(aborts="commands", commands_wait_for_rounds=False),
    ),
    Variant("aborts pass retractions", Rules(aborts_wait_for_retraction=False), "growing", 1282),
    Variant("votes without epochs", Rules(epochs_in_votes=False), "growing", 495),
    Variant("rank 0's room wakes", Rules(retry="rank0"), first=25),
    Variant("a retracted request queues last", Rules(retracted_join="tail"), "growing", 73),
)
"""Each breaks something in some random history. What `trim_on_net_effect` and `refresh_hints` are for is reuse and not
safety: histories written by hand show that."""

SAFE = (
    Variant("concrete victims", Rules(victims="concrete")),
    Variant("lease and escrow in two steps", Rules(prepare_in_one_step=False)),
    Variant("a lease takes any shorter prefix", Rules(shorter_lease="any")),
    Variant("a lease takes no shorter prefix", Rules(shorter_lease="never")),
    Variant("leases pay until the first snapshot", Rules(leased_snapshot_counts_until="first_snapshot")),
    Variant("prepare again when somebody committed", Rules(reconcile="prepare_if_committed")),
    Variant("attempts beside extensions", Rules(extensions_first=False)),
    Variant("commands wait for nothing", Rules(commands_wait_for_rounds=False)),
    Variant("waiting requests are tried in every round", Rules(retry="poll")),
    Variant("headroom 2", Rules(headroom=2)),
    Variant("hints are not refreshed", Rules(refresh_hints=False)),
    Variant("a trim needs a spare slot", Rules(trim_on_net_effect=False)),
)
"""Other choices that random histories find no harm in."""


def history(rules: Rules, family: str, seed: int, *, patience: int | None = None) -> Simulation:
    """The history of this seed, not begun; the same rules, family and seed always give the same."""
    config = FAMILIES[family](random.Random(f"{family}/{seed}"))
    if patience is not None:
        config = replace(config, patience=patience)
    return Simulation(rules, config, seed)


def harm(simulation: Simulation) -> str | None:
    """Run a history to its end: what it did to somebody, None when nothing."""
    try:
        stat = simulation.run()
    except Violation as found:
        return str(found)
    if stat["retracted_alone"]:
        return "a request was retracted that was alone"
    if stat["max_passed"] > MOST_PASSED:
        return f"{stat['max_passed']} later requests were admitted while an earlier one waited"
    return None
