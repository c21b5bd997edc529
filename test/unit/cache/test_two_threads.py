"""The admission thread and the LOOP on one real tree at the same time."""

from __future__ import annotations

import contextlib
import queue
import random
import sys
import threading
import time
import traceback
from array import array

import pytest
from unit.cache.real_rank import RealRank, Running, record

from sglang_wavepp.admission.hold import Hold
from sglang_wavepp.admission.messages import InstallRecord

pytestmark = pytest.mark.unit

KINDS = [(1, False), (16, True), (64, False)]


class Duet:
    """One thread admits or gives up, the other runs what was admitted."""

    def __init__(self, rank: RealRank, seed: int) -> None:
        self.rank = rank
        self.roots = [self.words(random.Random(seed + n), 12 * rank.page) for n in range(3)]
        self.admitted: queue.SimpleQueue[tuple[InstallRecord, int]] = queue.SimpleQueue()
        self.failures: list[str] = []
        self.done = {"admitted": 0, "given up": 0, "short": 0, "finished": 0}
        self.stopping = False

    @staticmethod
    def words(rng: random.Random, length: int) -> array[int]:
        return array("q", (rng.randrange(1000) for _ in range(length)))

    def admit(self) -> None:
        rng, page, made = random.Random(11), self.rank.page, 0
        while not self.stopping:
            root = rng.choice(self.roots)
            tokens = root[: rng.randint(1, len(root))] + self.words(rng, rng.randint(0, 2 * page))
            request = record(f"r{made}", tokens, output=rng.randint(1, 3))
            made += 1
            held = self.rank.admission.hold(request, self.rank.admission.hint(request).endpoint)
            if not isinstance(held, Hold):
                self.done["short"] += 1
                time.sleep(0.0005)
            elif rng.random() < 0.3:
                self.rank.admission.release(request.rid)
                self.done["given up"] += 1
            else:
                self.admitted.put((request, held.endpoint))
                self.done["admitted"] += 1
            _ = self.rank.admission.releases

    def run(self) -> None:
        rng, running = random.Random(12), list[Running]()
        while not self.stopping or running or not self.admitted.empty():
            with contextlib.suppress(queue.Empty):
                running.append(self.rank.start(*self.admitted.get(timeout=0.001)))
            if not running:
                continue
            run = rng.choice(running)
            prompt = len(run.record.token_ids)
            if run.at >= prompt:
                running.remove(run)
                self.rank.finish(run)
                self.done["finished"] += 1
            else:
                self.rank.span(run, min((run.at // self.rank.page + 2) * self.rank.page, prompt))
            self.rank.check()

    def thread(self, what: object) -> threading.Thread:
        def guarded() -> None:
            try:
                what()  # type: ignore[operator]
            except BaseException:
                self.failures.append(traceback.format_exc())
                self.stopping = True

        return threading.Thread(target=guarded, daemon=True)


@pytest.mark.parametrize(("page", "hybrid"), KINDS, ids=["dense page 1", "hybrid page 16", "dense page 64"])
def test_two_threads_keep_every_promise(page: int, hybrid: bool) -> None:
    rank = RealRank(page=page, tokens=page * 48, slots=24 if hybrid else None)
    duet = Duet(rank, seed=page)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [duet.thread(duet.admit), duet.thread(duet.run)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30
        while duet.done["finished"] < 60 and not duet.failures and time.monotonic() < deadline:
            time.sleep(0.01)
        duet.stopping = True
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a thread hangs"
    finally:
        sys.setswitchinterval(interval)
    assert not duet.failures, duet.failures[0]
    assert duet.done["finished"] >= 60, duet.done
    rank.check_drained()
