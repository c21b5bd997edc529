"""Traffic that reuses prefixes, arriving at a rate, on a cache that holds a share of all prefixes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmark.paced.cells import PAGE
from benchmark.paced.clients import Served
from benchmark.paced.prompts import Script, random_ids, request_of
from sglang_wavepp.simulate.workload import LENGTHS, REUSED, Job, Workload

RATES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DOCUMENTS = 24
_POPULARITY = 0.7
"""Exponent of the documents' popularity: the first is asked about most."""


@dataclass(frozen=True, slots=True)
class Survival:
    """An open loop of requests for prompts of 131K tokens, of which 90% is one of the documents.

    Attributes:
        rate: arrivals a second, at random times.
        requests: how many.
    """

    rate: float
    requests: int = 60

    @property
    def kind(self) -> str:
        return f"survival@{self.rate:g}"

    @property
    def name(self) -> str:
        return self.kind

    @property
    def concurrency(self) -> int:
        return 0

    @property
    def scale(self) -> float:
        return 1.0

    @property
    def bounded(self) -> bool:
        return False

    def workload(self, *, shorten: int) -> Workload:
        rng = random.Random(f"arrivals-{self.rate}")
        clock, times = 0.0, []
        for _ in range(self.requests):
            times.append(clock)
            clock += rng.expovariate(self.rate)
        job = Job(cached=_document_tokens(shorten), prompt=LENGTHS["131"] // shorten)
        return Workload(name=self.kind, concurrency=0, jobs=(job,) * self.requests, times=tuple(times))

    def script(self, *, shorten: int, tag: str, seed: int) -> Script:
        rng = random.Random(f"{tag}-{seed}")
        length = _document_tokens(shorten)
        documents = [random_ids(rng, length) for _ in range(DOCUMENTS)]
        weights = [1 / (place + 1) ** _POPULARITY for place in range(DOCUMENTS)]
        chosen = random.Random(f"documents-{seed}").choices(range(DOCUMENTS), weights, k=self.requests)
        suffix = LENGTHS["131"] // shorten - length
        measured = tuple(
            request_of(
                f"{tag}-d{document}-{number}", documents[document] + random_ids(rng, suffix), reusable=length
            )
            for number, document in enumerate(chosen)
        )
        return Script(priming={}, measured=measured, fresh=True)

    def settled(self, served: Sequence[Served]) -> list[Served]:
        """All requests about a document can reuse it but the first that was sent: a server that answers late has as
        many chances as one that answers early."""
        first: dict[str, float] = {}
        for each in served:
            document = _document_of(each.rid)
            first[document] = min(first.get(document, each.sent), each.sent)
        return [
            replace(each, reusable=each.reusable if first[_document_of(each.rid)] < each.sent else 0)
            for each in served
        ]


def working_set(shorten: int) -> int:
    """Tokens of all documents."""
    return DOCUMENTS * _document_tokens(shorten)


def cache_tokens(share: float, *, shorten: int) -> int:
    """Of a cache that holds this share of all documents, in whole pages."""
    return int(working_set(shorten) * share) // PAGE * PAGE


def _document_tokens(shorten: int) -> int:
    return int(LENGTHS["131"] * REUSED) // shorten // PAGE * PAGE


def _document_of(rid: str) -> str:
    return rid.split("-")[-2]
