"""The rules of the protocol that can be changed, one at a time, to see what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class Violation(Exception):
    """Something happened that the protocol must rule out."""


@dataclass(frozen=True)
class Rules:
    """Every default is the recommended rule; the first value of a `Literal` is the default."""

    victims: Literal["counted", "concrete"] = "counted"
    """What backs a reservation beside free tokens: the number of evictable ones, or named tree nodes."""

    held_child: Literal["credit", "error"] = "credit"
    """Concrete victims. Who evicts a victim whose child another escrow holds: credits that escrow, or fails."""

    claims: Literal["keep_whole", "recheck_at_commit"] = "keep_whole"
    """A pin leaves every escrow whole, or escrows look only when they commit whether their victims are still there."""

    prepare_in_one_step: bool = True
    """Lease and escrow are one critical section."""

    shorter_lease: Literal["leased_snapshot", "never", "any"] = "leased_snapshot"
    """What a lease that does not fit takes instead: an earlier recurrent snapshot that another lease pays for, nothing,
    or any shorter prefix that fits."""

    headroom: int = 0
    """Tokens that an attempt must leave unused."""

    headroom_counts: Literal["pins_and_reservations", "pins"] = "pins_and_reservations"

    lone_ignores_headroom: bool = True
    """The headroom never stops a request beside which nothing else is alive."""

    lone_goes_lower: bool = True
    """A prepare that fails where nothing else is alive takes the next lower endpoint that fits."""

    order: Literal["strict", "bypass"] = "strict"
    """Whether requests may be attempted behind one that waits."""

    slots: Literal["entitlement", "dynamic"] = "entitlement"
    """Recurrent slots: what each admitted request may come to need, or what is free and evictable just now."""

    leased_snapshot_counts_until: Literal["first_span", "first_snapshot"] = "first_span"
    """How long a lease pays for its snapshot beside the request's own slots."""

    reconcile: Literal["trim", "prepare_if_committed"] = "trim"
    """Endpoints differ: every rank keeps its hold and trims it, or all release when somebody has committed."""

    trim_on_net_effect: bool = True
    """Whether a trim needs a spare slot for the earlier snapshot before it gives back the later one."""

    recompute_demand: bool = True
    """A trim reserves what the lower endpoint needs, not what the higher one did."""

    failed_extension_counts: Literal["all", "after_retractions", "always"] = "all"
    """A refused extension counts when its rank has applied the last command that frees capacity (`all`), the last
    retraction, or always."""

    refusals_wait_for_trims: bool = True
    """A refused extension does not count in a round in which a request goes lower: what that one holds may be what the
    extension lacks, and it is admitted, or lets go, within a few rounds."""

    extensions_first: bool = True
    """No request is newly attempted while an extension is pending."""

    commands_wait_for_rounds: bool = True
    """A rank applies a command only after the rounds that rank 0 had applied when it emitted it."""

    aborts: Literal["owner", "commands"] = "owner"
    """Aborts of requests in admission travel in rounds and all others in commands, or all in commands."""

    aborts_wait_for_retraction: bool = True
    """An abort in a round waits where the retraction of the same request is still in the command stream."""

    epochs_in_votes: bool = True
    """A rank that has not applied a retraction answers `pending`, instead of judging the text it has."""

    retry: Literal["failing_ranks", "poll", "rank0"] = "failing_ranks"
    """A waiting request is attempted again when all ranks that refused have released something, in every round, or
    when rank 0 has released something."""

    retracted_join: Literal["arrival", "tail"] = "arrival"
    """Where a retracted request queues."""

    refresh_hints: bool = True
    """Requests that were not attempted are hinted again in every round."""
