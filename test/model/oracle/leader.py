"""Rank 0's part in admission: who is attempted, extended, retracted and aborted, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from model.oracle.config import Config
from model.oracle.decide import Outcome, Verdict
from model.oracle.messages import (
    Abort,
    Attempt,
    Broadcast,
    Command,
    Extension,
    NoCapacity,
    Record,
    Results,
    Retract,
    Vote,
)
from model.oracle.rank import Rank
from model.oracle.rules import Rules


@dataclass
class Run:
    """An admitted request as rank 0 plans it, in absolute positions.

    Attributes:
        planned: tokens in waves that were launched.
        in_flight: waves whose result has not come.
        prefill: tokens to compute before the first output token.
        granted: room that all ranks have reserved.
        total: positions that it stores in the end.
    """

    planned: int
    in_flight: int
    prefill: int
    granted: int
    total: int


class Leader:
    """Owns the order of requests.

    Args:
        rank: rank 0; its admission state is the leader's.
        send: puts a command on the other ranks' streams.
        tell: takes events for the log.

    Attributes:
        queue: requests in admission.
        admitted: in the order of admission.
        overtaken: how many later requests were admitted before each one in admission.
        passed: those of them that came by while it was neither being lowered nor judged pending.
        last_freeing: number of the last command after which a refused extension counts.
    """

    def __init__(
        self,
        rank: Rank,
        rules: Rules,
        config: Config,
        *,
        send: Callable[[Command], None],
        tell: Callable[..., None],
    ) -> None:
        self.rank, self.rules, self.config = rank, rules, config
        self.queue: list[int] = []
        self.admitted: list[int] = []
        self.runs: dict[int, Run] = {}
        self.records: list[Record] = []
        self.aborts: list[tuple[int, int]] = []
        self.round = self.commands = self.last_freeing = 0
        self.awaits_votes = False
        self.overtaken: Counter[int] = Counter()
        self.passed: Counter[int] = Counter()
        self.stat: Counter[str] = Counter()
        self._send, self._tell = send, tell
        self._refused_at: dict[int, dict[int, int]] = {}
        """Release counters of the ranks that refused a request, when they did."""
        self._own_at_refusal: dict[int, int] = {}
        self._latest: list[int] = []

    # --- clients --------------------------------------------------------------------------------------------

    def announce(self, record: Record) -> None:
        self.records.append(record)
        self.queue.append(record.rid)

    def live(self) -> list[int]:
        """Requests that can be aborted."""
        return [*self.queue, *self.runs]

    def abort(self, rid: int) -> None:
        """The owner of the request sends the abort: the rounds while it is in admission, commands afterwards."""
        self.stat["aborted"] += 1
        if rid in self.runs or self.rules.aborts == "commands":
            self.runs.pop(rid, None)
            if rid in self.queue:
                self.queue.remove(rid)
                self.rank.admission.pop(rid, None)
            if rid in self.admitted:
                self.admitted.remove(rid)
            self.emit(Abort(*self.stamp(), rid))
        else:
            self.queue.remove(rid)
            request = self.rank.requests.get(rid)
            self.aborts.append((rid, request.epoch if request is not None else 0))

    def finish(self, rid: int) -> None:
        """Its last token was sampled."""
        del self.runs[rid]
        self.admitted.remove(rid)
        self.stat["finished"] += 1

    # --- commands -------------------------------------------------------------------------------------------

    def stamp(self) -> tuple[int, int]:
        """Number of the next command, and the round that it was based on."""
        self.commands += 1
        return self.commands, self.rank.applied_round

    def emit(self, command: Command) -> None:
        """Rank 0 applies its command at once, the others when it arrives."""
        self._send(command)
        rule = self.rules.failed_extension_counts
        ends = isinstance(command, Results) and any(token.last for token in command.tokens)
        frees = isinstance(command, Abort) or ends
        if (isinstance(command, Retract) and rule != "always") or (frees and rule == "all"):
            self.last_freeing = command.number
        self._tell("command", command)
        self.rank.apply(command)

    # --- opening a round ------------------------------------------------------------------------------------

    def has_something_to_say(self) -> bool:
        return not self.awaits_votes and bool(self.records or self.aborts or self.queue or self.admitted)

    def open_round(self) -> Broadcast:
        extensions = self._extensions()
        attempts, hints = self._attempts_and_hints(may_start=not (extensions and self.rules.extensions_first))
        self.round += 1
        broadcast = Broadcast(
            number=self.round,
            records=tuple(self.records),
            aborts=tuple(self.aborts),
            extensions=tuple(extensions),
            attempts=tuple(attempts),
            hints=tuple(hints),
        )
        self.records.clear()
        self.aborts.clear()
        self.awaits_votes = True
        self.stat["rounds"] += 1
        self._tell("round", broadcast)
        return broadcast

    def _extensions(self) -> list[Extension]:
        found = []
        for rid in self.admitted:
            run = self.runs[rid]
            if run.total > run.granted and run.granted <= run.planned:
                target = min(run.granted + self.config.reserve, run.total)
                found.append(Extension(rid, self._epoch(rid), target))
        return found

    def _attempts_and_hints(self, *, may_start: bool) -> tuple[list[Attempt], list[tuple[int, int]]]:
        attempts: list[Attempt] = []
        hints: list[tuple[int, int]] = []
        room = self.config.rows - len(self.runs)
        behind_one_that_waits = False
        for rid in sorted(self.queue) if self.rules.retracted_join == "arrival" else self.queue:
            state, epoch = self.rank.admission.get(rid), self._epoch(rid)
            if state is not None and state.verdict in (Verdict.TRIM, Verdict.PREPARE):
                attempts.append(Attempt(rid, epoch, state.verdict is Verdict.TRIM, state.candidate))
                continue
            if (
                state is not None
                and state.verdict is not Verdict.ADMITTED
                and may_start
                and not behind_one_that_waits
                and len(attempts) < min(self.config.batch, room)
                and (state.verdict is not Verdict.WAIT or self._may_retry(rid))
            ):
                attempts.append(Attempt(rid, epoch, False, state.candidate))
                continue
            behind_one_that_waits = behind_one_that_waits or self.rules.order == "strict"
            if state is None or self.rules.refresh_hints:
                hints.append((rid, epoch))
        return attempts, hints

    def _epoch(self, rid: int) -> int:
        request = self.rank.requests.get(rid)
        return request.epoch if request is not None else 0

    def _may_retry(self, rid: int) -> bool:
        if self.rules.retry == "poll":
            return True
        if self.rules.retry == "rank0":
            return self.rank.pool.releases > self._own_at_refusal.get(rid, -1)
        return all(self._latest[rank] > then for rank, then in self._refused_at.get(rid, {}).items())

    # --- closing a round ------------------------------------------------------------------------------------

    def close_round(self, opened: Broadcast, outcomes: Sequence[Outcome], votes: Sequence[Vote]) -> None:
        """Rank 0 has applied the gather; admissions, and at most one retraction, follow from it."""
        self.awaits_votes = False
        self._latest = [vote.releases for vote in votes]
        going_on = {o.rid for o in outcomes if o.verdict not in (Verdict.ADMITTED, Verdict.WAIT)}
        for outcome in outcomes:
            self._take_outcome(outcome, votes)
            if outcome.verdict is Verdict.ADMITTED:
                self._count_passed(outcome.rid, going_on)
        for refused in self._take_grants(opened, votes)[:1]:
            self._retract_for(refused)

    def _take_outcome(self, outcome: Outcome, votes: Sequence[Vote]) -> None:
        rid, verdict = outcome.rid, outcome.verdict
        self.stat[verdict.value] += 1
        self._tell("decision", outcome, [vote.attempts[rid] for vote in votes])
        if verdict is Verdict.WAIT:
            answers = [vote.attempts[rid] for vote in votes]
            self._refused_at[rid] = {
                rank: answer.releases for rank, answer in enumerate(answers) if isinstance(answer, NoCapacity)
            }
            self._own_at_refusal[rid] = self.rank.pool.releases
        elif verdict is Verdict.ADMITTED:
            assert outcome.endpoint is not None
            self._admit(rid, outcome.epoch, outcome.endpoint)

    def _admit(self, rid: int, epoch: int, endpoint: int) -> None:
        if (rid, epoch) in self.aborts:  # the admission stands, and the abort is its first command
            self.aborts.remove((rid, epoch))
            self.emit(Abort(*self.stamp(), rid))
            return
        if rid not in self.queue:
            return
        request = self.rank.requests[rid]
        self.queue.remove(rid)
        self.admitted.append(rid)
        self.runs[rid] = Run(
            planned=endpoint,
            in_flight=0,
            prefill=request.prefill,
            granted=request.holding.granted,
            total=request.prefill + request.remaining - 1,
        )

    def _count_passed(self, rid: int, going_on: set[int]) -> None:
        if rid not in self.runs:
            return
        for earlier in self.queue:
            if earlier < rid:
                self.overtaken[earlier] += 1
                self.passed[earlier] += earlier not in going_on
                self.stat["max_overtaken"] = max(self.stat["max_overtaken"], self.overtaken[earlier])
                self.stat["max_passed"] = max(self.stat["max_passed"], self.passed[earlier])

    def _take_grants(self, opened: Broadcast, votes: Sequence[Vote]) -> list[int]:
        """Requests whose extension was refused by a rank that had all the capacity there is, or will be soon."""
        refused = []
        lowering = self.rules.refusals_wait_for_trims and any(attempt.trims for attempt in opened.attempts)
        for extension in opened.extensions:
            rid = extension.rid
            if rid not in self.runs or self.rank.requests[rid].epoch != extension.epoch:
                continue
            answers = [vote.extensions[rid] for vote in votes]
            if all(answer.granted for answer in answers):
                self.runs[rid].granted = extension.target
                self._tell("extended", rid, extension.target)
            elif not lowering and any(
                not answer.granted and answer.applied_command >= self.last_freeing for answer in answers
            ):
                refused.append(rid)
        return refused

    def _retract_for(self, refused: int) -> None:
        rid = self.admitted.pop()  # the latest, possibly the one that asks
        del self.runs[rid]
        self.stat["retracted"] += 1
        self.stat["retracted_alone"] += not self.admitted
        self._tell("retract", rid, "for", refused)
        self.queue.append(rid)
        self.emit(Retract(*self.stamp(), rid))
        self.rank.admission.pop(rid, None)
