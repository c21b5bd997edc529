"""The requests of a workload as bytes that are ready to be sent: encoding them costs more than sending them."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchmark.workloads import FIRST_ID, LAST_ID
from sglang_wavepp.simulate.workload import Job

GROUPS = 4
"""Different prefixes that the requests of a workload reuse, in turn."""
AFTER_PREFIX = 64
"""Tokens behind the prefix in the request that brings it into the cache."""
_IDS = range(FIRST_ID, LAST_ID + 1)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of one output token.

    Attributes:
        rid: its id on the server.
        body: of ``POST /generate``.
        tokens: of the prompt.
        reusable: tokens that are in the cache when all went well.
    """

    rid: str
    body: bytes
    tokens: int
    reusable: int


@dataclass(frozen=True, slots=True)
class Script:
    """What is sent: `priming` brings prefixes into the cache, by their length, then `measured` is played.

    ``fresh``: on an empty cache.
    """

    priming: dict[int, tuple[Request, ...]]
    measured: tuple[Request, ...]
    fresh: bool = False

    @classmethod
    def of(cls, jobs: Sequence[Job], *, tag: str, seed: int) -> Script:
        """Requests for these jobs. Prefixes are the same in every script; what follows them is nobody else's.

        Args:
            tag: request ids begin with it.
        """
        rng = random.Random(f"{tag}-{seed}")
        prefixes = {job.cached: _prefixes(job.cached) for job in jobs if job.cached}
        priming = {
            length: tuple(
                _request(f"{tag}-p{length}-{number}", prefix + random_ids(rng, AFTER_PREFIX), 0)
                for number, prefix in enumerate(group)
            )
            for length, group in prefixes.items()
        }
        turns = {length: _turns() for length in prefixes}
        measured = []
        for number, job in enumerate(jobs):
            prefix = prefixes[job.cached][next(turns[job.cached])] if job.cached else []
            measured.append(_request(f"{tag}-{number}", prefix + random_ids(rng, job.suffix), job.cached))
        return cls(priming=priming, measured=tuple(measured))

    def added(self, primed: Collection[int]) -> int:
        """Tokens that a cache gets from this, when it has the prefixes of these lengths already."""
        missing = (group for length, group in self.priming.items() if length not in primed)
        primes = sum(request.tokens for group in missing for request in group)
        return primes + sum(request.tokens - request.reusable for request in self.measured)


def request_of(rid: str, token_ids: Sequence[int], *, reusable: int) -> Request:
    """A request for these tokens."""
    return _request(rid, list(token_ids), reusable)


def _request(rid: str, token_ids: list[int], reusable: int) -> Request:
    sampling = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
    body = json.dumps({"rid": rid, "input_ids": token_ids, "sampling_params": sampling}).encode()
    return Request(rid=rid, body=body, tokens=len(token_ids), reusable=reusable)


def _prefixes(length: int) -> list[list[int]]:
    return [random_ids(random.Random(f"prefix-{length}-{group}"), length) for group in range(GROUPS)]


def _turns() -> Iterator[int]:
    while True:
        yield from range(GROUPS)


def random_ids(rng: random.Random, count: int) -> list[int]:
    """Token ids without special tokens."""
    return rng.choices(_IDS, k=count)
