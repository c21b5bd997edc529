"""Histories: ranks, links that deliver whenever they like, and clients; every step is explicit and can be scripted."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from model.oracle.config import Config
from model.oracle.leader import Leader
from model.oracle.loop import LeaderLoop
from model.oracle.messages import Broadcast, Command, Record, Vote, Wave
from model.oracle.rank import Rank
from model.oracle.rules import Rules, Violation

AUDIT_EVERY = 64
RANK_STEPS = ("operate", "vote", "gather", "broadcast", "command")
LEADER_STEPS = ("round", "wave", "result", "arrive")


class Simulation:
    """One history.

    `enabled` names what can happen next, `do` does one of it, `step` does a random one, `run` goes on to the end. Names
    are those of `LEADER_STEPS`, and of `RANK_STEPS` with a space and the rank behind.

    Args:
        seed: of the random scheduler and of the requests that arrive by themselves.

    Attributes:
        log: events of rank 0, each with the number of its step.
        stat: counts of them.
    """

    def __init__(self, rules: Rules | None = None, config: Config | None = None, seed: int = 0) -> None:
        self.rules = rules or Rules()
        self.config = config or Config()
        self.random = random.Random(seed)
        self.ranks = [self.make_rank(index) for index in range(len(self.config.pools))]
        self.leader = Leader(self.ranks[0], self.rules, self.config, send=self._send, tell=self._tell)
        self.loop = LeaderLoop(self.leader)
        self.stat: Counter[str] = self.leader.stat
        self.log: list[tuple[object, ...]] = []
        self.steps = self.last_end = 0
        self._broadcasts: list[deque[Broadcast]] = [deque() for _ in self.ranks]
        self._commands: list[deque[Command]] = [deque() for _ in self.ranks]
        self._votes: list[list[deque[Vote]]] = [[deque() for _ in self.ranks] for _ in self.ranks]
        """By receiver, then by sender."""
        self._to_arrive = self.config.requests
        self._texts: list[tuple[int, ...]] = []
        self._frozen: str | None = None
        self._thaw = 0
        self._next_rid = 0
        for _ in range(self.config.warm):
            self._warm_up()

    def make_rank(self, index: int) -> Rank:
        """One rank of the history."""
        return Rank(index, self.rules, self.config)

    # --- clients --------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """A random request, often with the prefix of an earlier one."""
        self._to_arrive -= 1
        config, rng = self.config, self.random
        base = rng.choice(self._texts) if self._texts and rng.random() < 0.7 else ()
        length = rng.randint(1, config.longest)
        text = list(base[: length - 1 if rng.random() < 0.5 else length])
        while len(text) < length:
            text.append(rng.randrange(config.vocabulary))
        self.submit(text, rng.randint(1, config.most_output))

    def submit(self, prompt: list[int], output: int) -> int | None:
        """A client's request; None when it is refused, because an empty pool somewhere is too small for it."""
        rid = self._next_rid
        self._next_rid += 1
        self._texts.append(tuple(prompt))
        slots_short = any(0 < slots < self.config.entitlement for slots in self.config.slots)
        if len(prompt) + output - 1 > min(self.config.pools) or slots_short:
            self.stat["refused"] += 1
            return None
        self.leader.announce(Record(rid, tuple(prompt), output))
        self._tell("arrive", rid, tuple(prompt), output)
        return rid

    def _warm_up(self) -> None:
        """A text that every rank has seen to another depth, with snapshots at other places."""
        rng, length = self.random, self.config.longest
        text = tuple(rng.randrange(self.config.vocabulary) for _ in range(length))
        self._texts.append(text)
        for rank in self.ranks:
            depth = rng.randint(length // 2, length)
            positions = rng.sample(range(1, length + 1), rng.randint(2, max(length // 2, 2)))
            rank.warm(text[:depth], positions)

    def abort(self, rid: int) -> None:
        self._tell("abort", rid)
        self.leader.abort(rid)

    def lose_content(self, rank: Rank) -> None:
        """A rank evicts content that nobody holds, for reasons of its own."""
        path = rank.pool.oldest_leaf(lambda node: node.victim_of is None)
        if path is not None:
            rank.escrows.evict(path)

    # --- links ----------------------------------------------------------------------------------------------

    def _tell(self, *event: object) -> None:
        self.log.append((self.steps, *event))

    def _send(self, command: Command) -> None:
        for queue in self._commands[1:]:
            queue.append(command)

    def _open_round(self) -> None:
        broadcast = self.leader.open_round()
        for queue in self._broadcasts:
            queue.append(broadcast)

    def _receive_broadcast(self, rank: Rank) -> None:
        rank.on_broadcast(self._broadcasts[rank.index].popleft())

    def _receive_command(self, rank: Rank) -> None:
        rank.apply(self._commands[rank.index].popleft())

    def _receive_result(self) -> None:
        self.loop.take_result(self._results().popleft())

    def _vote(self, rank: Rank) -> None:
        vote = rank.vote()
        for receiver in self._votes:
            receiver[rank.index].append(vote)

    def _gather(self, rank: Rank) -> None:
        opened = rank.open
        assert opened is not None
        votes = [sent.popleft() for sent in self._votes[rank.index]]
        outcomes = rank.on_gather(votes)
        if any(other.decided.get(opened.number, outcomes) != outcomes for other in self.ranks):
            raise Violation(f"ranks decide differently in round {opened.number}")
        if rank.index == 0:
            self.leader.close_round(opened, outcomes, votes)

    def _results(self) -> deque[Wave]:
        results = self.ranks[-1].results
        assert results is not None
        return results

    # --- steps ----------------------------------------------------------------------------------------------

    def enabled(self) -> list[tuple[str, Callable[[], object]]]:
        """Everything that can happen next, by name."""
        found: list[tuple[str, Callable[[], object]]] = []
        if self._to_arrive:
            found.append(("arrive", self.arrive))
        if self.leader.has_something_to_say():
            found.append(("round", self._open_round))
        for rank in self.ranks:
            i = rank.index
            if rank.operations:
                found.append((f"operate {i}", rank.operate))
            elif rank.open is not None and not rank.voted:
                found.append((f"vote {i}", partial(self._vote, rank)))
            elif rank.open is not None and all(self._votes[i]):
                found.append((f"gather {i}", partial(self._gather, rank)))
            elif rank.open is None and self._broadcasts[i]:
                found.append((f"broadcast {i}", partial(self._receive_broadcast, rank)))
            if self._commands[i] and self._may_apply(rank, self._commands[i][0]):
                found.append((f"command {i}", partial(self._receive_command, rank)))
        if self._waves_in_flight() < self.config.ring and self.leader.admitted and self.loop.plan():
            found.append(("wave", self.loop.launch))
        if self._results():
            found.append(("result", self._receive_result))
        return found

    def _waves_in_flight(self) -> int:
        return self.loop.waves - (self.ranks[-1].waves - len(self._results()))

    def _may_apply(self, rank: Rank, command: Command) -> bool:
        if self.rules.commands_wait_for_rounds and rank.applied_round < command.after_round:
            return False
        # Activations come from the stage before.
        return not isinstance(command, Wave) or self.ranks[rank.index - 1].waves >= command.wave

    def do(self, *names: str) -> None:
        """Do these steps in this order.

        Raises:
            LookupError: a step isn't enabled when its turn comes.
        """
        for name in names:
            enabled = dict(self.enabled())
            if name not in enabled:
                raise LookupError(f"{name} is not among {sorted(enabled)}")
            self.steps += 1
            enabled[name]()
            self.check()

    def step(self) -> None:
        """Something random; now and then an adversary keeps one actor from acting for a while."""
        self.steps += 1
        rng, config = self.random, self.config
        live = self.leader.live()
        if live and rng.random() < config.aborts:
            self.abort(rng.choice(live))
        else:
            if rng.random() < config.chaos:
                self.lose_content(rng.choice(self.ranks))
            enabled = self.enabled()
            if not enabled:
                raise Violation("deadlock: nothing can happen")
            if self.steps >= self._thaw:
                self._freeze()
            others = [step for name, step in enabled if name != self._frozen]
            rng.choice(others or [step for _, step in enabled])()
        self.check()

    def _freeze(self) -> None:
        of_ranks = [f"{kind} {rank.index}" for kind in RANK_STEPS for rank in self.ranks]
        self._frozen = self.random.choice([None, None, *LEADER_STEPS, *of_ranks])
        self._thaw = self.steps + self.random.choice((5, 20, 80))

    def done(self) -> bool:
        """Everything that arrived has ended, and nothing is on its way."""
        leader = self.leader
        busy = self._to_arrive or leader.records or leader.aborts or leader.queue or leader.admitted
        sent = any(self._commands) or any(self._broadcasts) or self._results()
        return not (busy or sent or leader.awaits_votes or any(rank.open is not None for rank in self.ranks))

    def run(self, most_steps: int = 10**6) -> Counter[str]:
        """To the end, then look for leaks.

        Raises:
            Violation: with the message of the rule that was broken.
        """
        ended = -1
        while not self.done():
            self.step()
            if ended != (ended := self.stat["finished"] + self.stat["aborted"]):
                self.last_end = self.steps
            if self.steps - self.last_end > self.config.patience:
                raise Violation(f"no request ended for {self.config.patience} steps")
            if self.steps > most_steps:
                raise Violation(f"not at its end after {most_steps} steps")
        self.check(audit=True)
        for rank in self.ranks:
            rank.check_drained()
        return self.stat

    def check(self, *, audit: bool = False) -> None:
        """What must hold after every step; an audit recounts everything."""
        for rank in self.ranks:
            rank.check()
            if audit or self.steps % AUDIT_EVERY == 0:
                rank.audit()
