"""Rank 0's LOOP: plans waves of spans, and turns what the last stage sampled into commands."""

from __future__ import annotations

from collections.abc import Iterator

from model.oracle.leader import Leader
from model.oracle.messages import Results, Span, Token, Wave


class LeaderLoop:
    """Plans for requests that the leader has admitted.

    Attributes:
        waves: launched so far.
    """

    def __init__(self, leader: Leader) -> None:
        self.waves = 0
        self._leader = leader
        self._config = leader.config

    def plan(self) -> tuple[Span, ...]:
        """A chunk of every prompt, and a token of every request that decodes and waits for no result."""
        return tuple(self._spans())

    def launch(self) -> None:
        leader, spans = self._leader, self.plan()
        self.waves += 1
        for span in spans:
            run = leader.runs[span.rid]
            run.planned += span.length
            run.in_flight += 1
        leader.emit(Wave(*leader.stamp(), self.waves, spans))

    def take_result(self, wave: Wave) -> None:
        """Sample a token of each request whose prompt is complete; results of a retracted epoch are dropped."""
        leader, tokens = self._leader, []
        for span in wave.spans:
            run, request = leader.runs.get(span.rid), leader.rank.requests.get(span.rid)
            if run is None or request is None or request.epoch != span.epoch:
                continue
            run.in_flight -= 1
            if span.start + span.length < run.prefill:
                continue
            sampled = (sum(request.tokens) * 7 + len(request.tokens)) % self._config.vocabulary
            tokens.append(Token(span.rid, span.epoch, sampled, last=request.remaining == 1))
        for token in tokens:
            if token.last:
                leader.finish(token.rid)
        if tokens:
            leader.emit(Results(*leader.stamp(), tuple(tokens)))

    def _spans(self) -> Iterator[Span]:
        for rid in self._leader.admitted:
            run, request = self._leader.runs[rid], self._leader.rank.requests[rid]
            start = run.planned
            if start < run.prefill:
                length = min(self._config.chunk, run.prefill - start)
                end = start + length
                yield Span(
                    rid, request.epoch, start, length, end % self._config.grid == 0 or end == run.prefill
                )
            elif not run.in_flight and start < min(run.granted, run.total) and len(request.tokens) > start:
                yield Span(rid, request.epoch, start, 1, False)
