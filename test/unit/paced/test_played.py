"""The table of two clients, and what bench_serving is asked."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from benchmark.paced.played import BENCH, OURS, Played, played_table
from benchmark.serving import FixedLengthLoad


def played(**changes: Any) -> Played:
    values: dict[str, Any] = {
        "cell": "cold65:1", "arm": "stock", "client": OURS, "repeat": 0, "requests": 6, "tok_s": 100.0,
        "p50_s": 2.0, "p95_s": 4.0, "cached_tokens": 0, "scale": 1.0, "waited": 0.01,
    }  # fmt: skip
    return Played(**{**values, **changes})


def test_both_clients_stand_side_by_side_and_repeats_are_paired() -> None:
    everything = [
        played(arm=arm, client=client, repeat=repeat, tok_s=(100.0 + repeat) * (2 if arm == "wavepp" else 1))
        for arm in ("stock", "wavepp")
        for client in (BENCH, OURS)
        for repeat in (1, 0)
    ]
    everything[0] = msgspec.structs.replace(everything[0], cached_tokens=64, waited=0.07)
    _, _, _, *rows = played_table(everything).splitlines()
    assert [row.split()[:3] for row in rows[:4]] == [
        ["cold65:1", arm, client] for arm in ("stock", "wavepp") for client in (OURS, BENCH)
    ]
    assert rows[1].split()[-2:] == ["64", "7%"] and rows[0].split()[-2:] == ["0", "1%"]
    assert "wavepp / stock" in rows[4] and "2.00 (2.00-2.00)" in rows[4] and BENCH in rows[5]


def test_one_arm_has_nothing_to_be_divided_by() -> None:
    assert " / " not in played_table([played(), played(client=BENCH)])


def test_prompts_have_one_length_and_are_sent_as_token_ids() -> None:
    words = FixedLengthLoad(prompt_tokens=4096, requests=6, concurrency=2, seed=3).arguments()
    given = dict(pairwise(words))
    assert "--tokenize-prompt" in words
    assert (given["--dataset-name"], given["--random-input-len"], given["--random-range-ratio"]) == (
        "random-ids",
        "4096",
        "1",
    )
    assert (given["--random-output-len"], given["--num-prompts"], given["--max-concurrency"]) == (
        "1",
        "6",
        "2",
    )
