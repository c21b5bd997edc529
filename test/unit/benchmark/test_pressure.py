"""Traffic on caches that are too small: what counts as a good hit, rounds, and a server that fails."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from benchmark.client import Answer, RequestFailed
from benchmark.configuration import ServerConfig
from benchmark.pressure import PAGE, Outcome, Seen, Side, Traffic, _passed, slice_of, table
from benchmark.workloads import Prompt


def answer_to(prompt: Prompt, cached: int) -> Answer:
    return Answer(
        rid=prompt.name,
        prompt_tokens=len(prompt.token_ids),
        cached_tokens=cached,
        token_ids=(1,),
        logprobs=(0.0,),
        text="",
        finish={},
        seconds=0.0,
        meta={},
    )


class Cache:
    """Answers with these cached tokens, in turn; fails where there is None."""

    def __init__(self, cached: Sequence[int | None]) -> None:
        self._cached = iter(cached)

    def ask(self, prompt: Prompt) -> Answer:
        cached = next(self._cached)
        if cached is None:
            raise RequestFailed("first line\nthe server is gone")
        return answer_to(prompt, cached)


def prompts(count: int, tokens: int = 4 * PAGE) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(name=f"p{n}", token_ids=(*range(tokens), 10_000 + n), output_tokens=1) for n in range(count)
    )


def side(cached: Sequence[int | None], *, wavepp: bool = True) -> Side:
    return Side(ServerConfig(wavepp=wavepp), SimpleNamespace(client=Cache(cached)))


def played(cached: Sequence[int | None], rounds: int = 2) -> Outcome:
    asked = prompts(len(cached))
    one = side(cached)
    for number in range(rounds):
        one.play(slice_of(asked, number, rounds), 1)
    traffic = Traffic(prompts=asked, working_set=0, largest=0)
    return one.outcome(traffic, [answer_to(prompt, 0) for prompt in asked])


def test_a_good_hit_reuses_most_of_what_earlier_answers_have_computed_also_in_another_round() -> None:
    found = played([0, 4 * PAGE, 3 * PAGE, 0])
    # Nothing could be reused by the first; of the others one reused all, one three quarters, one nothing.
    assert found.good_hits == 1 / 3 and found.reused == 7 / 12
    assert found.finished == 4 and len(found.seconds) == 2 and not found.wrong and found.problem is None


def test_a_server_that_fails_plays_no_more_and_keeps_what_it_had() -> None:
    found = played([0, 0, None, 0, 0, 0], rounds=3)
    assert found.problem == "the server is gone" and found.finished == 2 and len(found.seconds) == 1
    assert "did not finish: the server is gone" in table([found])


def test_wrong_answers_are_counted() -> None:
    asked = prompts(2)
    one = side([0, 0])
    one.play(asked, 1)
    other = [answer_to(asked[0], 0), Answer(**{**_fields(answer_to(asked[1], 0)), "token_ids": (2,)})]
    assert one.outcome(Traffic(prompts=asked, working_set=0, largest=0), other).wrong == 1


def test_rounds_are_all_prompts_in_their_order() -> None:
    asked = prompts(7)
    assert [each for n in range(3) for each in slice_of(asked, n, 3)] == list(asked)


def test_a_prefix_is_possible_in_whole_pages_and_leaves_a_token_to_compute() -> None:
    seen = Seen()
    seen.add(range(2 * PAGE))
    assert seen.possible(range(3 * PAGE)) == 2 * PAGE
    assert seen.possible(range(2 * PAGE)) == PAGE


def test_the_table_compares_times_round_by_round() -> None:
    common = {"pool": 640, "finished": 9, "good_hits": 0.5, "reused": 0.5, "wrong": 0}
    shown = table(
        [
            Outcome(arm="stock", seconds=(10.0, 20.0, 10.0), **common),
            Outcome(arm="wavepp", seconds=(9.0, 24.0, 10.0), **common),
        ]
    )
    assert "640 tokens: WavePP's time / stock's 1.00 (0.90-1.20)" in shown


def test_wavepp_passes_with_all_answers_right_and_no_fewer_good_hits_than_stock() -> None:
    def outcome(arm: str, *, finished: int = 4, good_hits: float = 0.5, wrong: int = 0) -> Outcome:
        return Outcome(
            pool=640, arm=arm, finished=finished, good_hits=good_hits, reused=0.5, seconds=(1.0,), wrong=wrong
        )

    stock = outcome("stock")
    assert _passed([stock, outcome("wavepp")], 4)
    assert not _passed([stock, outcome("wavepp", finished=3)], 4)
    assert not _passed([stock, outcome("wavepp", good_hits=0.4)], 4)
    assert not _passed([stock, outcome("wavepp", wrong=1)], 4)


def _fields(answer: Answer) -> dict[str, object]:
    return {name: getattr(answer, name) for name in Answer.__slots__}
