"""What is asked of the server: lengths of requests, and when each arrives."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One request.

    Attributes:
        cached: tokens of the prompt that every stage holds.
        prompt: tokens of the prompt.
    """

    cached: int
    prompt: int

    @property
    def suffix(self) -> int:
        """Tokens to compute."""
        return self.prompt - self.cached


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a closed loop: `requests` are sent, so that `concurrency` are outstanding."""

    concurrency: int
    requests: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival.

    Attributes:
        name: such as `reuse131`.
        concurrency: the largest number of requests outstanding; 0 in an open loop.
        jobs: the requests.
        phases: of a closed loop, together as long as `jobs`; empty in an open loop.
        times: seconds of arrival in an open loop, ascending; empty in a closed loop.
        stagger: seconds between the first requests of a closed loop; 0 sends them at once.
    """

    name: str
    concurrency: int
    jobs: tuple[Job, ...]
    phases: tuple[Phase, ...] = ()
    times: tuple[float, ...] = ()
    stagger: float = 0.0

    def __post_init__(self) -> None:
        sent = sum(phase.requests for phase in self.phases)
        if not self.jobs or len(self.jobs) != (len(self.times) if self.times else sent):
            raise ValueError(f"workload {self.name} has {len(self.jobs)} requests, but others arrive")

    @property
    def tokens(self) -> int:
        """Input tokens, cached ones included."""
        return sum(job.prompt for job in self.jobs)


LENGTHS = {"65": 65_536, "131": 131_072, "262": 262_144}
"""Prompt tokens by their short name."""
REUSED = 0.9
"""Cached share of the prompts of `reuse` workloads."""
CONCURRENCIES = (1, 4, 8, 16, 32)
FEWEST = 6
"""Requests of a run, at least."""
STRETCHES = (1, 4, 32, 4, 1)
"""Concurrencies of `phases`, one after the other."""


def job(length: int, *, reused: float = 0.0, page: int = 64) -> Job:
    """A request whose first tokens are cached, in whole pages."""
    return Job(cached=int(length * reused) // page * page, prompt=length)


def closed(name: str, concurrency: int, *, rounds: int = 2, page: int = 64) -> Workload:
    """A closed loop by its name: `cold65`, `cold131`, `cold262`, `reuse131`, `reuse262` or `mixed131`.

    Mixed traffic alternates a cold prompt with one of which 90% is cached.

    Args:
        rounds: requests of the run, as a multiple of the concurrency.
        page: tokens of a cache page.

    Raises:
        ValueError: the name isn't known, or no request is ever outstanding.
    """
    kind, length = _parse(name)
    if concurrency < 1 or rounds < 1:
        raise ValueError(f"{name} needs a request outstanding and a round, got {concurrency}, {rounds}")
    count = max(rounds * concurrency, FEWEST)
    shares = {"cold": (0.0,), "reuse": (REUSED,), "mixed": (0.0, REUSED)}[kind]
    jobs = tuple(job(length, reused=shares[number % len(shares)], page=page) for number in range(count))
    return Workload(name=name, concurrency=concurrency, jobs=jobs, phases=(Phase(concurrency, count),))


def phases(name: str = "reuse131", *, rounds: int = 2, page: int = 64) -> Workload:
    """One run whose concurrency rises from 1 to 32 and falls again.

    Raises:
        ValueError: the name isn't known, or there is no round.
    """
    kind, length = _parse(name)
    if rounds < 1:
        raise ValueError(f"phases needs a round, got {rounds}")
    stretches = tuple(Phase(c, max(rounds * c, FEWEST)) for c in STRETCHES)
    count = sum(stretch.requests for stretch in stretches)
    request = job(length, reused=REUSED if kind == "reuse" else 0.0, page=page)
    return Workload(name="phases", concurrency=max(STRETCHES), jobs=(request,) * count, phases=stretches)


def opened(name: str, *, rate: float, count: int, seed: int = 1, page: int = 64) -> Workload:
    """An open loop: `count` requests at `rate` a second, at random times.

    Raises:
        ValueError: the rate or the count isn't positive and finite, or the name isn't known.
    """
    if not 0 < rate < math.inf or count < 1:
        raise ValueError(f"an open loop needs a positive rate and requests, got {rate}, {count}")
    pattern = closed(name, 1, page=page)
    clock, times, rng = 0.0, [], random.Random(seed)
    for _ in range(count):
        times.append(clock)
        clock += rng.expovariate(rate)
    jobs = tuple(pattern.jobs[number % len(pattern.jobs)] for number in range(count))
    return Workload(name=f"{name}@{rate:g}", concurrency=0, jobs=jobs, times=tuple(times))


def _parse(name: str) -> tuple[str, int]:
    for kind in ("cold", "reuse", "mixed"):
        if name.startswith(kind) and name.removeprefix(kind) in LENGTHS:
            return kind, LENGTHS[name.removeprefix(kind)]
    raise ValueError(f"unknown workload {name!r}: cold, reuse or mixed, then one of {', '.join(LENGTHS)}")
