from __future__ import annotations

import random
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from unit.telemetry.traces import admission, decode, prefill, rank, result

from sglang_wavepp.telemetry.figure import WIDTH, figure
from sglang_wavepp.telemetry.reading import RankTrace

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"


def small() -> list[RankTrace]:
    return [
        rank(
            0,
            admission("1:a", 0, 1, 64),
            admission("2:b", 0, 3, 0),
            prefill(1, 1, 11, ("1:a", 64, 192)),
            prefill(2, 11, 21, ("1:a", 256, 44), ("2:b", 0, 212)),
            result(2, 41),
            decode(3, 42, 43, "1:a", "2:b"),
        ),
        rank(
            1,
            prefill(1, 12, 20, ("1:a", 64, 192)),
            prefill(2, 30, 40, ("1:a", 256, 44), ("2:b", 0, 212)),
            decode(3, 43, 44, "1:a", "2:b"),
        ),
    ]


def crowd(stages: int, waves: int, requests: int) -> list[RankTrace]:
    rng = random.Random(stages * waves)
    rids = [f"{k}:{rng.getrandbits(128):032x}" for k in range(requests)]
    first = {rid: k * waves / requests for k, rid in enumerate(rids)}
    ranks = []
    for stage in range(stages):
        events = [
            prefill(k, k + stage, k + stage + 0.9, (rids[k * requests // waves], k, 1)) for k in range(waves)
        ]
        if not stage:
            events += [e for rid in rids for e in admission(rid, max(0, first[rid] - 5), first[rid])]
        ranks.append(rank(stage, *events))
    return ranks


def drawn(ranks: list[RankTrace], title: str = "A run") -> ElementTree.Element:
    return ElementTree.fromstring(figure(ranks, title))


def titles(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}title")]


def words(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def test_it_says_what_happened() -> None:
    picture = drawn(small())
    said = words(picture)
    assert "A run" in said
    assert said[1].startswith(
        "2 stages · 2 requests · 2 prefill waves · 1 decode wave · 448 prompt tokens computed · 64 reused · 44 ms"
    )
    assert {"stage 0", "stage 1", "request", "a", "b"} & set(said) >= {"stage 0", "stage 1", "a", "b"}
    assert "64 reused, 236 computed" in said and "0 reused, 212 computed" in said


def test_every_wave_stands_on_every_stage_and_idle_time_is_explained() -> None:
    said = titles(drawn(small()))
    for wave in (
        "prefill wave 1: 192 tokens of 1 request",
        "prefill wave 2: 256 tokens of 2 requests",
        "decode wave 3: 2",
    ):
        assert sum(each.startswith(wave) for each in said) == 2, wave
    assert "idle for 1 ms: admission: nothing admitted yet" in said
    assert "idle for 20 ms: results: ring full, or the token before" in said
    assert "idle for 1 ms: late launch: input there, not launched yet" in said
    assert "idle for 12 ms: upstream: the stage before computes it" not in said
    assert "1:a, in admission for 1 ms, first wave 0 µs later, 64 tokens reused, 236 computed" in said


def test_the_key_lists_what_occurs_and_nothing_else() -> None:
    only = [rank(0, prefill(1, 0, 5, ("a", 0, 64)), prefill(2, 6, 7, ("a", 64, 64)))]
    said = words(drawn(only))
    assert any(each.startswith("prefill wave 7") for each in said)
    assert any(each.startswith("idle, late launch") for each in said)
    for absent in (
        "idle, upstream",
        "idle, admission",
        "idle, results",
        "decode",
        "of several",
        "in admission",
    ):
        assert not any(each.startswith(absent) for each in said), absent


@pytest.mark.parametrize(
    ("stages", "waves", "requests"), [(2, 10, 3), (4, 60, 12), (8, 500, 24), (8, 500, 120), (16, 40, 5)]
)
def test_nothing_leaves_the_page_or_lies_on_something_else(stages: int, waves: int, requests: int) -> None:
    picture = drawn(crowd(stages, waves, requests))
    height = float(picture.attrib["height"])
    assert float(picture.attrib["width"]) == WIDTH and height < 1000
    for box in picture.iter(f"{SVG}rect"):
        if "x" in box.attrib:
            assert -0.01 <= float(box.attrib["x"]) <= WIDTH - float(box.attrib["width"]) + 0.01
            assert 0 <= float(box.attrib["y"]) <= height
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in picture.iter(f"{SVG}text"):
        size, x = float(text.attrib["font-size"]), float(text.attrib["x"])
        length = 0.5 * size * len(text.text or "")
        left = x - {"start": 0.0, "middle": length / 2, "end": length}[text.attrib["text-anchor"]]
        assert left > -length / 4 and left + length < WIDTH + length / 4, text.text
        lines.setdefault(float(text.attrib["y"]), []).append((left, left + length))
    for line in lines.values():
        line.sort()
        assert all(one[1] <= other[0] + 2 for one, other in pairwise(line))


def test_a_long_run_stays_a_file_that_a_browser_opens() -> None:
    assert len(figure(crowd(8, 500, 120), "long")) < 3_000_000


def test_names_can_not_break_out() -> None:
    evil = '</text><script>alert("1")</script>'
    picture = drawn([rank(0, admission(evil, 0, 1), prefill(1, 1, 2, (evil, 0, 64)))], title=evil)
    assert not list(picture.iter(f"{SVG}script"))
    assert evil in words(picture)


def test_tensor_ranks_are_named() -> None:
    ranks = [rank(0, prefill(1, 0, 1, ("a", 0, 64)), tp_rank=tp, tp_size=2) for tp in range(2)]
    assert {"pp0 tp0", "pp0 tp1"} <= set(words(drawn(ranks)))


@pytest.mark.parametrize("ranks", [[], [rank(0)], [rank(0), rank(1)], [rank(0, admission("a", 0, 1))]])
def test_a_run_without_waves_gives_a_picture(ranks: list[RankTrace]) -> None:
    assert drawn(ranks).tag == f"{SVG}svg"
