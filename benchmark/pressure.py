"""``python -m benchmark.pressure``: traffic with shared prefixes on a cache that is far too small for it.

Two pools: 1.2 times the largest request, and half of the working set. Each is served by stock SGLang and by WavePP
with the same requests in the same order, in rounds: the arms take turns, and the one that isn't measured is frozen.
Every answer is compared with stock SGLang on one stage without a prefix cache. The figures are the good-hit rate (how
many of the requests that could reuse a prefix that an earlier answer had computed reused at least 80% of it) and the
time, round by round.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from benchmark.client import Answer, RequestFailed, ask_all
from benchmark.comparison import differences
from benchmark.configuration import ServerConfig, reference
from benchmark.interleaved import Spread, frozen, in_turn, ratio
from benchmark.progress import Progress
from benchmark.servers import CHECKOUT, Server, ServerError
from benchmark.workloads import FIRST_ID, LAST_ID, Prompt
from sglang_wavepp.cpu.models.configurations import ModelKind
from sglang_wavepp.simulate.command_line import count

PAGE = 64
ANSWER_SECONDS = 120.0
GOOD = 0.8
"""Share of the possible prefix that a good hit reuses."""


class Asker(Protocol):
    """What asks a server."""

    def ask(self, prompt: Prompt) -> Answer:
        """The answer.

        Raises:
            RequestFailed: there was none.
        """


class Asked(Protocol):
    """A server that can be asked."""

    @property
    def client(self) -> Asker:
        """Of this server."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that share documents.

    Attributes:
        prompts: in sending order.
        working_set: tokens of all different prefixes, in whole pages.
        largest: tokens of the largest request, prompt and output.
    """

    prompts: tuple[Prompt, ...]
    working_set: int
    largest: int

    @classmethod
    def of(cls, requests: int, *, documents: int = 16, seed: int = 7) -> Traffic:
        """Documents of 500 to 1,100 tokens, asked about at three depths; popular ones more often."""
        rng = random.Random(seed)
        texts = [_ids(rng, rng.randint(500, 1100)) for _ in range(documents)]
        prompts = []
        for number in range(requests):
            text = texts[min(int(rng.expovariate(4 / documents)), documents - 1)]
            depth = len(text) * rng.choice((4, 7, 10)) // 10
            ids = text[:depth] + _ids(rng, rng.randint(10, 120))
            prompts.append(Prompt(name=f"p{number}", token_ids=ids, output_tokens=rng.randint(1, 4)))
        return cls(
            prompts=tuple(prompts),
            working_set=sum(len(text) // PAGE * PAGE for text in texts),
            largest=max(len(prompt.token_ids) + prompt.output_tokens for prompt in prompts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One arm on one pool.

    Attributes:
        good_hits: share of the requests with something to reuse that reused 80% of it or more.
        reused: cached tokens of all requests, as a share of what was possible.
        seconds: of each round.
        wrong: answers that differ from the reference.
        problem: why the arm did not finish, None when it did.
    """

    pool: int
    arm: str
    finished: int
    good_hits: float
    reused: float
    seconds: tuple[float, ...]
    wrong: int
    problem: str | None = None


class Seen:
    """Prefixes that answers have computed so far, in pages. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[tuple[int, ...]] = set()

    def possible(self, token_ids: Sequence[int]) -> int:
        """Tokens of the longest known prefix that leaves a token to compute."""
        with self._lock:
            end = 0
            while end + PAGE < len(token_ids) and tuple(token_ids[: end + PAGE]) in self._known:
                end += PAGE
            return end

    def add(self, token_ids: Sequence[int]) -> None:
        """The prompt was answered."""
        with self._lock:
            for end in range(PAGE, len(token_ids) + 1, PAGE):
                self._known.add(tuple(token_ids[:end]))


class Side:
    """One arm while it is played: its server, and what came so far."""

    def __init__(self, config: ServerConfig, server: Asked) -> None:
        self.config = config
        self._server = server
        self._seen = Seen()
        self._answers: list[tuple[int, Answer]] = []
        self._seconds: list[float] = []
        self.problem: str | None = None

    def play(self, prompts: Sequence[Prompt], concurrency: int) -> None:
        """One round, a closed loop. A side that has failed plays no more."""
        if self.problem is not None:
            return
        started = time.monotonic()
        try:
            self._answers += drive(self._server.client, prompts, concurrency, self._seen)
        except RequestFailed as error:
            self.problem = str(error).strip().splitlines()[-1][:120]
            return
        self._seconds.append(time.monotonic() - started)

    def outcome(self, traffic: Traffic, expected: Sequence[Answer]) -> Outcome:
        """The figures of what was answered."""
        chances = [(possible, answer.cached_tokens) for possible, answer in self._answers if possible]
        answers = [answer for _, answer in self._answers]
        done = len(answers)
        return Outcome(
            pool=self.config.pool,
            arm=arm_of(self.config),
            finished=done,
            good_hits=sum(cached >= GOOD * possible for possible, cached in chances) / max(len(chances), 1),
            reused=sum(min(c, p) for p, c in chances) / max(sum(p for p, _ in chances), 1),
            seconds=tuple(self._seconds),
            wrong=len(differences(traffic.prompts[:done], answers, expected[:done])),
            problem=self.problem,
        )


def drive(client: Asker, prompts: Sequence[Prompt], concurrency: int, seen: Seen) -> list[tuple[int, Answer]]:
    """What was possible and what came, per prompt; a closed loop.

    Raises:
        RequestFailed: of the first request that failed.
    """

    def ask(prompt: Prompt) -> tuple[int, Answer]:
        possible = seen.possible(prompt.token_ids)
        answer = client.ask(prompt)
        seen.add(prompt.token_ids)
        return possible, answer

    with ThreadPoolExecutor(concurrency) as executor:
        futures = [executor.submit(ask, prompt) for prompt in prompts]
        try:
            return [future.result() for future in futures]
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def arm_of(config: ServerConfig) -> str:
    """What the table calls a server."""
    return "wavepp" if config.wavepp else "stock"


def play_pool(
    configs: Sequence[ServerConfig],
    traffic: Traffic,
    expected: Sequence[Answer],
    *,
    concurrency: int,
    rounds: int,
    folder: Path,
    progress: Progress,
) -> list[Outcome]:
    """Start a server of each configuration, let them take turns, end them.

    Raises:
        ServerError: a server didn't start.
    """
    with ExitStack() as ending:
        servers: dict[str, Server] = {}
        for config in configs:
            progress.step(f"starting {arm_of(config)} with {config.pool:,} cache tokens")
            with frozen(list(servers.values())):
                server = servers[arm_of(config)] = ending.enter_context(Server(config, folder))
            server.client.timeout_seconds = ANSWER_SECONDS
            progress.done()
        sides = {arm_of(config): Side(config, servers[arm_of(config)]) for config in configs}

        def play(arm: str, _: Server, number: int) -> None:
            progress.step(f"{arm}, round {number + 1} of {rounds}")
            sides[arm].play(slice_of(traffic.prompts, number, rounds), concurrency)
            progress.done()

        in_turn(servers, rounds, play)
        return [side.outcome(traffic, expected) for side in sides.values()]


def slice_of(prompts: Sequence[Prompt], number: int, rounds: int) -> Sequence[Prompt]:
    """Those of one round; all rounds together are all of them, in their order."""
    return prompts[number * len(prompts) // rounds : (number + 1) * len(prompts) // rounds]


def table(outcomes: Sequence[Outcome]) -> str:
    """For people."""
    lines = [
        "  pool tokens  arm     finished  good hits  reused  wrong  seconds of a round, median (least-most)"
    ]
    for each in outcomes:
        lines.append(
            f"  {each.pool:11,}  {each.arm:6}  {each.finished:8}  {each.good_hits:9.1%}  {each.reused:6.1%}"
            f"  {each.wrong:5}  {Spread.of(each.seconds).text(1) if each.seconds else '-'}"
            + (f"  did not finish: {each.problem}" if each.problem else "")
        )
    return "\n".join([*lines, *_ratios(outcomes)])


def _ratios(outcomes: Sequence[Outcome]) -> list[str]:
    """WavePP's times divided by stock's, where both played all rounds."""
    lines = []
    for pool in dict.fromkeys(each.pool for each in outcomes):
        by_arm = {each.arm: each.seconds for each in outcomes if each.pool == pool and each.problem is None}
        if set(by_arm) == {"stock", "wavepp"}:
            lines.append(
                f"  {pool:,} tokens: WavePP's time / stock's {ratio(by_arm['wavepp'], by_arm['stock']).text(2)}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every answer of WavePP is right and it reuses no less than stock."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.pressure", description=__doc__)
    parser.add_argument("--model", choices=[kind.value for kind in ModelKind], default="hybrid")
    parser.add_argument("--pp", type=count, default=2, help="pipeline stages (default 2)")
    parser.add_argument("--requests", type=count, default=500, help="requests per arm and pool (default 500)")
    parser.add_argument("--concurrency", type=count, default=32, help="requests at a time (default 32)")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each arm (default 5)")
    parser.add_argument("--arms", nargs="+", choices=["stock", "wavepp"], default=["stock", "wavepp"])
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "bench" / "pressure.json")
    asked = parser.parse_args(arguments)
    traffic = Traffic.of(asked.requests)
    pools = [_pages(traffic.largest * 6 // 5), _pages(traffic.working_set // 2)]
    try:
        outcomes = _measured(asked, traffic, pools)
    except (RequestFailed, ServerError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")
    print(f"\nworking set {traffic.working_set:,} tokens, largest request {traffic.largest:,}\n")
    print(table(outcomes))
    print(f"\n  {asked.out}")
    return 0 if _passed(outcomes, asked.requests) else 1


def _measured(asked: argparse.Namespace, traffic: Traffic, pools: Sequence[int]) -> list[Outcome]:
    folder = asked.out.parent / "pressure"
    progress = Progress(1 + len(pools) * len(asked.arms) * (1 + asked.rounds))
    base = ServerConfig(
        model=ModelKind(asked.model), pp=asked.pp, running=asked.concurrency, options=("--sleep-on-idle",)
    )
    progress.step(f"{len(traffic.prompts)} answers of stock SGLang on one stage, without a cache")
    with Server(reference(base.model), folder) as server:
        expected = ask_all(
            server.client, traffic.prompts, 8, lambda done, of: progress.detail(f"{done} of {of}")
        )
    progress.done()
    base = base.with_(recurrent_slots=_slots(asked.concurrency))
    outcomes: list[Outcome] = []
    for pool in pools:
        outcomes += play_pool(
            [base.with_(pool=pool, wavepp=arm == "wavepp") for arm in asked.arms],
            traffic,
            expected,
            concurrency=asked.concurrency,
            rounds=asked.rounds,
            folder=folder,
            progress=progress,
        )
    return outcomes


def _passed(outcomes: Sequence[Outcome], requests: int) -> bool:
    stock = {each.pool: each.good_hits for each in outcomes if each.arm == "stock"}
    ours = [each for each in outcomes if each.arm == "wavepp"]
    return all(
        each.problem is None
        and each.finished == requests
        and not each.wrong
        and each.good_hits >= stock.get(each.pool, 0.0)
        for each in ours
    )


def _slots(concurrency: int) -> int:
    """Recurrent states: what the running requests need, and a few snapshots."""
    return 4 * concurrency + 32


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(count))


if __name__ == "__main__":
    sys.exit(main())
