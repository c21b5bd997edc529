import pytest

from sglang_wavepp.planning.publisher import COMPARED, Publisher
from sglang_wavepp.planning.snapshots import PublishRule
from sglang_wavepp.planning.spans import PlannedSpan

BLOCK = 64


def publisher() -> Publisher:
    return Publisher(PublishRule.sparse(grid=64, period=1024, inside=True), block=BLOCK)


def chain(*texts: tuple[str, int]) -> list[int]:
    """Hashes of blocks of the texts, each of which goes on after the one before."""
    found, before = [], 0
    for text, blocks in texts:
        for each in range(blocks):
            before = hash((before, text, each))
            found.append(before)
    return found


def serve(book: Publisher, *spans: PlannedSpan) -> list[int]:
    return [book.position(span) for span in spans]


def test_what_the_cache_holds_without_a_snapshot_gets_one() -> None:
    book = publisher()
    book.admit("a", prompt=1000, endpoint=128, reach=512)
    assert serve(book, PlannedSpan("a", 128, 640), PlannedSpan("a", 768, 232)) == [512, 0]


def test_a_reach_that_is_the_endpoint_is_no_branch() -> None:
    book = publisher()
    book.admit("a", prompt=1000, endpoint=512, reach=512)
    assert serve(book, PlannedSpan("a", 512, 488)) == [0]


def test_whoever_computes_a_shared_position_first_publishes_it() -> None:
    book = publisher()
    book.announce("a", chain(("shared", 6), ("a", 9)))
    book.admit("a", prompt=1000, endpoint=0)
    book.announce("b", chain(("shared", 6), ("b", 8)))
    assert serve(book, PlannedSpan("a", 0, 1000)) == [6 * BLOCK], "b is only announced"
    book.announce("c", chain(("shared", 6), ("c", 2)))
    book.admit("b", prompt=900, endpoint=0)
    book.admit("c", prompt=512, endpoint=0)
    assert serve(book, PlannedSpan("c", 0, 512), PlannedSpan("b", 0, 900)) == [0, 6 * BLOCK], "b came first"


def test_each_depth_is_for_the_earliest_that_has_it() -> None:
    book = publisher()
    for rid, text in {
        "a": (("x", 2), ("a", 9)),
        "b": (("x", 2), ("y", 4), ("b", 1)),
        "c": (("x", 2), ("y", 4)),
    }.items():
        book.announce(rid, chain(*text))
        book.admit(rid, prompt=1000, endpoint=0)
    spans = [PlannedSpan(rid, 0, 1000) for rid in "abc"]
    assert serve(book, *spans) == [2 * BLOCK, 6 * BLOCK, 0]


def test_a_shared_position_that_was_passed_is_published_by_the_later_request() -> None:
    book = publisher()
    book.announce("a", chain(("shared", 6), ("a", 9)))
    book.admit("a", prompt=1000, endpoint=0)
    assert serve(book, PlannedSpan("a", 0, 512)) == [0]
    book.announce("b", chain(("shared", 6), ("b", 8)))
    book.admit("b", prompt=900, endpoint=0)
    assert serve(book, PlannedSpan("a", 512, 488), PlannedSpan("b", 0, 900)) == [0, 6 * BLOCK]


def test_what_a_request_reuses_already_is_no_branch() -> None:
    book = publisher()
    for rid in "ab":
        book.announce(rid, chain(("shared", 6), (rid, 9)))
        book.admit(rid, prompt=900, endpoint=384)
    assert serve(book, PlannedSpan("a", 384, 516), PlannedSpan("b", 384, 516)) == [0, 0]


def test_requests_that_end_are_forgotten_and_share_nothing_any_more() -> None:
    book = publisher()
    for rid in "abc":
        book.announce(rid, chain(("shared", 6), (rid, 9)))
    book.forget("a")
    book.forget("a")
    book.admit("b", prompt=900, endpoint=0)
    book.forget("c")
    assert len(book) == 1
    assert serve(book, PlannedSpan("b", 0, 900)) == [6 * BLOCK]
    assert not len(book) and not book._kin
    with pytest.raises(KeyError):
        book.position(PlannedSpan("b", 0, 64))


def test_without_chains_only_the_rule_counts() -> None:
    book = publisher()
    book.announce("a", [])
    book.admit("a", prompt=1500, endpoint=0)
    assert serve(book, PlannedSpan("a", 0, 1088), PlannedSpan("a", 1088, 412)) == [1024, 0]
    assert not len(book)


def test_a_long_queue_is_not_searched_for_each_arrival() -> None:
    book = publisher()
    for k in range(3 * COMPARED):
        book.announce(f"r{k}", chain(("shared", 6), (f"own {k // COMPARED}", 3), (f"r{k}", 2)))
    for k in (0, COMPARED, 2 * COMPARED):
        book.admit(f"r{k}", prompt=1000, endpoint=0)
    spans = [PlannedSpan(f"r{k}", 0, 1000) for k in (0, COMPARED, 2 * COMPARED)]
    assert serve(book, *spans) == [9 * BLOCK, 0, 0]


def test_positions_behind_a_request_are_not_kept() -> None:
    book = publisher()
    book.announce("a", chain(("x", 8), ("a", 4)))
    book.admit("a", prompt=800, endpoint=0)
    for k in range(1, 8):
        book.announce(f"b{k}", chain(("x", k), (f"b{k}", 2)))
    assert serve(book, PlannedSpan("a", 0, 256)) == [4 * BLOCK]
    assert book._prompts["a"].branches == {k * BLOCK for k in range(5, 8)}
