"""Cells, traces and survival traffic: which tokens are sent, and what could be reused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmark.paced.cells import PAGE, TEN, cells_named
from benchmark.paced.clients import Served
from benchmark.paced.survival import DOCUMENTS, Survival, working_set
from benchmark.paced.trace_file import BLOCK, Entry, TraceError, TraceLoad, read_trace


def ids_of(body: bytes) -> list[int]:
    return json.loads(body)["input_ids"]


def served(rid: str, *, sent: float, answered: float, tokens: int = 1024, reusable: int = 0) -> Served:
    return Served(rid=rid, tokens=tokens, reusable=reusable, cached=0, due=sent, sent=sent, answered=answered)


# --- cells ----------------------------------------------------------------------------------------------------------


def test_the_ten_cells_have_names_and_workloads() -> None:
    cells = cells_named(" ".join(TEN))
    assert [cell.name for cell in cells] == list(TEN)
    assert len(cells) == 10
    assert all(cell.workload(shorten=4).jobs for cell in cells)


def test_the_device_is_slower_where_waves_are_smaller() -> None:
    names = "reuse131:1 reuse131:4 reuse131:8 reuse262:1 reuse262:4 cold131:1 cold131:8 cold65:1 mixed131:8 phases"
    scales = {cell.name: cell.scale for cell in cells_named(names)}
    assert scales == {
        **dict.fromkeys(("reuse131:1", "reuse262:1"), 0.25),
        **dict.fromkeys(("reuse131:4", "reuse131:8", "reuse262:4"), 0.5),
        **dict.fromkeys(("cold131:1", "cold65:1", "phases"), 0.5),
        **dict.fromkeys(("cold131:8", "mixed131:8"), 1.0),
    }


def test_a_reuse_cell_sends_prompts_of_which_ninety_percent_is_cached_in_pages() -> None:
    (cell,) = cells_named("reuse131:4")
    script = cell.script(shorten=4, tag="t", seed=0)
    assert len(script.measured) == 8
    prefixes = [ids_of(request.body)[: request.reusable] for request in script.measured]
    for request in script.measured:
        assert request.tokens == len(ids_of(request.body)) == 32_768
        assert request.reusable % PAGE == 0
        assert 0.89 < request.reusable / request.tokens <= 0.9
    # Every prefix is brought into the cache before, and used by more than one request.
    ((length, group),) = script.priming.items()
    primed = [ids_of(request.body)[:length] for request in group]
    assert len(primed) == 4
    assert all(prefix in primed for prefix in prefixes)
    assert prefixes[0] == prefixes[4] and prefixes[0] != prefixes[1]
    # What follows it is nobody else's.
    suffixes = [tuple(ids_of(request.body)[request.reusable :]) for request in script.measured]
    assert len(set(suffixes)) == 8


def test_arms_get_the_same_tokens_and_repeats_get_others() -> None:
    (cell,) = cells_named("cold65:1")
    first = cell.script(shorten=8, tag="t", seed=0)
    assert cell.script(shorten=8, tag="t", seed=0) == first
    again = cell.script(shorten=8, tag="t", seed=1)
    assert ids_of(again.measured[0].body)[:PAGE] != ids_of(first.measured[0].body)[:PAGE]


def test_repeats_share_their_prefixes_so_that_these_are_computed_once() -> None:
    (cell,) = cells_named("reuse131:1")
    first, again = (cell.script(shorten=8, tag=f"t{seed}", seed=seed).measured[0] for seed in (0, 1))
    assert ids_of(first.body)[: first.reusable] == ids_of(again.body)[: first.reusable]
    assert ids_of(first.body)[first.reusable :] != ids_of(again.body)[first.reusable :]


def test_a_mixed_cell_alternates_cold_and_reusing_prompts() -> None:
    (cell,) = cells_named("mixed131:8")
    kinds = [request.reusable > 0 for request in cell.script(shorten=64, tag="t", seed=0).measured]
    assert kinds == [False, True] * (len(kinds) // 2)


def test_phases_change_the_concurrency_in_one_run() -> None:
    (cell,) = cells_named("phases")
    workload = cell.workload(shorten=64)
    assert [phase.concurrency for phase in workload.phases] == [1, 4, 32, 4, 1]
    assert sum(phase.requests for phase in workload.phases) == len(workload.jobs)


def test_a_cell_that_is_named_twice_is_played_once() -> None:
    cells = cells_named("reuse131:4 cold65:1,reuse131:4 reuse131:04 phases phases")
    assert [cell.name for cell in cells] == ["reuse131:4", "cold65:1", "phases"]


@pytest.mark.parametrize("text", ["", "reuse131", "reuse131:0", "reuse131:x", "warm131:1"])
def test_what_is_no_cell_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cell|unknown workload"):
        cells_named(text)


# --- traces ---------------------------------------------------------------------------------------------------------


def test_equal_ids_are_equal_tokens_and_the_last_block_is_cut() -> None:
    first, second = Entry(2 * BLOCK + 100, (7, 8, 9)), Entry(2 * BLOCK + 5, (7, 8, 10))
    tokens = first.tokens()
    assert len(tokens) == 2 * BLOCK + 100 and len(second.tokens()) == 2 * BLOCK + 5
    assert tokens[: 2 * BLOCK] == second.tokens()[: 2 * BLOCK]
    assert tokens[2 * BLOCK :][:5] != second.tokens()[2 * BLOCK :]
    assert tokens[:BLOCK] != tokens[BLOCK : 2 * BLOCK]


def test_shortened_traces_share_as_much() -> None:
    first, second = Entry(1024, (7, 8)), Entry(1200, (7, 8, 9))
    assert len(first.tokens(4)) == 256 and len(second.tokens(4)) == 300
    assert first.tokens(4) == second.tokens(4)[:256]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_trace_file(tmp_path: Path, zipped: bool) -> None:
    lines = [{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, n]} for n in (1, 2, 3)]
    text = "\n".join(map(json.dumps, lines)) + "\n\n"
    path = tmp_path / ("t.jsonl.gz" if zipped else "t.jsonl")
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert read_trace(path) == [Entry(600, (0, n)) for n in (1, 2, 3)]
    assert len(read_trace(path, 2)) == 2


@pytest.mark.parametrize(
    "line",
    [
        '{"input_length": 600, "hash_ids": [1]}',
        '{"input_length": 0, "hash_ids": []}',
        "nothing",
        "[]",
        '{"hash_ids": [1]}',
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"input_length": 5, "hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:2"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl.gz", gzip.compress(b"{}\n" * 9999)[:-12]),
        ("t.jsonl", b"\xff\xfe\n"),
        ("t.jsonl.gz", b"plain"),
    ],
    ids=["cut", "other-encoding", "not-zipped"],
)
def test_a_file_that_is_no_text_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=name):
        read_trace(path)


def test_what_a_trace_could_reuse_is_what_was_answered_before() -> None:
    entries = (Entry(1024, (1, 2)), Entry(1024, (1, 3)), Entry(1024, (2, 1)), Entry(1024, (1, 2)))
    load = TraceLoad("t", entries, concurrency=2)
    settled = load.settled(
        [
            served("t-0", sent=0.0, answered=2.0),
            served("t-1", sent=1.0, answered=3.0),  # the first one is not answered yet
            served("t-2", sent=4.0, answered=5.0),  # the same blocks in another order are another prefix
            served("t-3", sent=6.0, answered=7.0),
        ]
    )
    # A token is left to compute, and prefixes are whole pages.
    assert [each.reusable for each in settled] == [0, 0, 0, 1024 - PAGE]


# --- survival -------------------------------------------------------------------------------------------------------


def test_survival_asks_about_documents_that_do_not_fit_together() -> None:
    load = Survival(rate=0.5, requests=40)
    workload, script = load.workload(shorten=32), load.script(shorten=32, tag="t", seed=0)
    assert len(workload.times) == 40 and list(workload.times) == sorted(workload.times)
    assert workload.times[-1] == pytest.approx(39 / 0.5, rel=0.5)
    documents = {tuple(ids_of(request.body)[: request.reusable]) for request in script.measured}
    assert 1 < len(documents) <= DOCUMENTS
    assert working_set(32) == DOCUMENTS * script.measured[0].reusable


def test_a_document_can_be_reused_by_all_but_the_first_that_ask_about_it() -> None:
    load = Survival(rate=0.5, requests=3)
    answers = [
        served("t-d3-0", sent=0.0, answered=5.0, reusable=64),
        served("t-d3-1", sent=4.0, answered=9.0, reusable=64),
        served("t-d4-2", sent=6.0, answered=9.0, reusable=64),
        served("t-d3-3", sent=6.0, answered=9.0, reusable=64),
    ]
    assert [each.reusable for each in load.settled(answers)] == [0, 64, 0, 64], "answered or not"
