from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.admission.wording import NOCAP, PENDING, attempt, broadcast, held, record, vote

from sglang_wavepp.admission.hint import Hint
from sglang_wavepp.admission.hold import Hold, Shortage
from sglang_wavepp.admission.member import RoundsMember
from sglang_wavepp.admission.messages import Gather, InstallRecord

pytestmark = pytest.mark.unit


class ScriptedCache:
    """Answers from a table and writes down what it was asked."""

    def __init__(self, **answers: Hold | Shortage) -> None:
        self.answers: dict[str, Hold | Shortage] = answers
        self.calls: list[tuple[str, str]] = []
        self.held: set[str] = set()
        self.releases = 7
        self.on_hold: Callable[[], None] = lambda: None

    def hint(self, record: InstallRecord) -> Hint:
        self.calls.append(("hint", record.rid))
        return Hint(len(record.token_ids) // 2)

    def hold(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        self.calls.append(("hold", record.rid))
        self.on_hold()
        answer = self.answers.get(record.rid, Hold(limit))
        if isinstance(answer, Hold):
            self.held.add(record.rid)
        return answer

    def trim(self, record: InstallRecord, limit: int) -> Hold | Shortage:
        assert record.rid in self.held
        self.calls.append(("trim", record.rid))
        answer = self.answers.get(record.rid, Hold(limit))
        if not isinstance(answer, Hold):
            self.held.discard(record.rid)
        return answer

    def holds(self, rid: str) -> bool:
        return rid in self.held

    def release(self, rid: str) -> None:
        self.calls.append(("release", rid))
        self.held.discard(rid)

    def admitted(self, rid: str) -> None:
        self.calls.append(("admitted", rid))

    def forget(self, rid: str) -> None:
        assert rid not in self.held
        self.calls.append(("forget", rid))


def member_of(cache: ScriptedCache) -> RoundsMember:
    return RoundsMember(rank=1, cache=cache)


def test_order_inside_a_round() -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    member.on_broadcast(broadcast(1, records=(record("old"),)), applied_command=0)
    member.on_gather(Gather(round=1, votes=()))
    member.drain()
    cache.calls.clear()
    answer = member.on_broadcast(
        broadcast(
            2,
            aborts=("old",),
            records=(record("new"), record("late")),
            attempts=(attempt("new", 3),),
            hints=("late", "old"),
        ),
        applied_command=0,
    )
    assert cache.calls == [("release", "old"), ("forget", "old"), ("hold", "new"), ("hint", "late")]
    assert answer.hints == {"late": Hint(5), "old": None}, "an aborted request has no hint"
    events = member.drain()
    assert [r.rid for r in events.installed] == ["new", "late"]
    assert events.withdrawn == ("old",)
    assert member.drain().installed == ()


def test_what_it_holds_it_votes() -> None:
    member = member_of(ScriptedCache(b=Hold(2)))
    answer = member.on_broadcast(
        broadcast(1, records=(record("a"), record("b")), attempts=(attempt("a", 4), attempt("b", 4))),
        applied_command=9,
    )
    assert answer.attempts == {"a": held(4, 4), "b": held(2, 4)}
    assert (answer.round, answer.rank, answer.applied_command, answer.releases) == (1, 1, 9, 7)


def test_a_failed_hold_blocks_all_later_attempts_of_the_round() -> None:
    cache = ScriptedCache(b=Shortage.SLOTS)
    member = member_of(cache)
    names = ("a", "b", "c", "d")
    answer = member.on_broadcast(
        broadcast(1, records=tuple(map(record, names)), attempts=tuple(attempt(n, 1) for n in names)),
        applied_command=0,
    )
    assert answer.attempts == {"a": held(1, 1), "b": NOCAP, "c": NOCAP, "d": NOCAP}
    assert [rid for call, rid in cache.calls if call == "hold"] == ["a", "b"]
    assert member.shortages == {"b": Shortage.SLOTS}


@pytest.mark.parametrize(
    ("epoch", "applied", "after"),
    [(1, 5, 5), (0, 4, 5)],
    ids=["another epoch", "fence not applied"],
)
def test_a_rank_that_cannot_judge_votes_pending_and_holds_nothing(
    epoch: int, applied: int, after: int
) -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    answer = member.on_broadcast(
        broadcast(1, records=(record("a"),), attempts=(attempt("a", 1, epoch=epoch),), after_command=after),
        applied_command=applied,
    )
    assert answer.attempts == {"a": PENDING}
    assert not cache.held


def test_a_request_that_takes_long_is_judged_once_it_is_built() -> None:
    cache = ScriptedCache()
    member = RoundsMember(rank=1, cache=cache, takes_long=lambda record: record.rid != "quick")
    names = ("slow", "quick", "gone")
    answer = member.on_broadcast(
        broadcast(1, records=tuple(map(record, names)), attempts=(attempt("slow", 4),), hints=names),
        applied_command=0,
    )
    assert [r.rid for r in member.drain().installed] == ["slow", "quick", "gone"]
    assert (answer.hints, answer.attempts) == (
        {"slow": None, "quick": Hint(5), "gone": None},
        {"slow": PENDING},
    )
    assert not cache.held
    member.on_gather(Gather(round=1, votes=(vote(0, slow=held(4, 4)), answer)))
    member.built("slow")
    member.on_broadcast(broadcast(2, aborts=("gone",)), applied_command=0)
    member.on_gather(Gather(round=2, votes=()))
    again = member.on_broadcast(
        broadcast(3, records=(record("gone"),), attempts=(attempt("slow", 4),), hints=("gone",)),
        applied_command=0,
    )
    assert again.attempts == {"slow": held(4, 4)}
    assert again.hints == {"gone": None}, "what an aborted request of that id had is forgotten"


def test_an_unknown_request_is_pending_and_blocks_nobody() -> None:
    member = member_of(ScriptedCache())
    answer = member.on_broadcast(
        broadcast(1, records=(record("b"),), attempts=(attempt("a", 1), attempt("b", 1))), applied_command=0
    )
    assert answer.attempts == {"a": PENDING, "b": held(1, 1)}


def test_capacity_that_comes_back_while_holds_fail_is_news() -> None:
    cache = ScriptedCache(a=Shortage.TOKENS)
    cache.on_hold = lambda: setattr(cache, "releases", 8)
    answer = member_of(cache).on_broadcast(
        broadcast(1, records=(record("a"),), attempts=(attempt("a", 1),)), applied_command=0
    )
    assert answer.releases == 7, "8 would tell the leader to wait for a ninth release that may never come"


def test_a_gather_keeps_what_is_admitted_and_what_goes_on_lower() -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    names = ("a", "b", "c", "d")
    opened = broadcast(1, records=tuple(map(record, names)), attempts=tuple(attempt(n, 4) for n in names))
    own = member.on_broadcast(opened, applied_command=0)
    other = vote(0, a=held(4, 4), b=held(2, 4), c=NOCAP, d=PENDING)
    assert cache.held == set(names)
    member.on_gather(Gather(round=1, votes=(other, own)))
    assert cache.held == {"a", "b"}
    assert [call for call in cache.calls if call[0] == "admitted"] == [("admitted", "a")]
    assert member.known == 3, "the admitted one is the LOOP's"


def test_what_goes_on_lower_is_trimmed() -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    for number, candidate, there in ((1, 8, 6), (2, 6, 4)):
        own = member.on_broadcast(
            broadcast(number, records=(record("a"),), attempts=(attempt("a", candidate),)), applied_command=0
        )
        assert own.attempts == {"a": held(candidate, candidate)}
        member.on_gather(Gather(round=number, votes=(vote(0, number, a=held(there, candidate)), own)))
    assert cache.calls == [("hold", "a"), ("trim", "a")]
    assert cache.held == {"a"}


def test_a_trim_that_finds_no_room_votes_so_and_holds_nothing() -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    own = member.on_broadcast(
        broadcast(1, records=(record("a"), record("b")), attempts=(attempt("a", 8),)), applied_command=0
    )
    member.on_gather(Gather(round=1, votes=(vote(0, a=held(6, 8)), own)))
    cache.answers["a"] = Shortage.SLOTS
    answer = member.on_broadcast(broadcast(2, attempts=(attempt("a", 6), attempt("b", 1))), applied_command=0)
    assert answer.attempts == {"a": NOCAP, "b": NOCAP}
    assert not cache.held


def test_an_abort_gives_back_what_goes_on_lower() -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    own = member.on_broadcast(
        broadcast(1, records=(record("a"),), attempts=(attempt("a", 8),)), applied_command=0
    )
    member.on_gather(Gather(round=1, votes=(vote(0, a=held(6, 8)), own)))
    assert cache.held == {"a"}
    member.on_broadcast(broadcast(2, aborts=("a",)), applied_command=0)
    assert not cache.held
    assert member.drain().withdrawn == ("a",)


def test_a_record_that_comes_again_is_ignored() -> None:
    member = member_of(ScriptedCache())
    for number in (1, 2):
        member.on_broadcast(broadcast(number, records=(record("a"),)), applied_command=0)
        member.on_gather(Gather(round=number, votes=()))
    assert [r.rid for r in member.drain().installed] == ["a"]


def test_an_abort_of_a_request_that_is_not_in_admission_changes_nothing() -> None:
    cache = ScriptedCache()
    member = member_of(cache)
    member.on_broadcast(broadcast(1, aborts=("running",)), applied_command=0)
    assert member.drain().withdrawn == ()
    assert cache.calls == []


def test_rounds_cannot_overlap() -> None:
    member = member_of(ScriptedCache())
    with pytest.raises(RuntimeError, match="open is None"):
        member.on_gather(Gather(round=1, votes=()))
    member.on_broadcast(broadcast(1), applied_command=0)
    with pytest.raises(RuntimeError, match="gather of round 1"):
        member.on_broadcast(broadcast(2), applied_command=0)
    with pytest.raises(RuntimeError, match="gather of round 2"):
        member.on_gather(Gather(round=2, votes=()))


def test_a_candidate_never_lifts_the_cache_limit() -> None:
    member = member_of(ScriptedCache())
    answer = member.on_broadcast(
        broadcast(1, records=(record("a", prompt=10, limit=3),), attempts=(attempt("a", 8),)),
        applied_command=0,
    )
    assert answer.attempts == {"a": held(3, 8)}
