from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import zmq

from sglang_wavepp.admission.messages import Broadcast, Gather, InstallRecord, Vote
from sglang_wavepp.plane.codec import CodecError, encode
from sglang_wavepp.plane.command_link import CommandLeaderLink, CommandMemberLink
from sglang_wavepp.plane.gate import Gate, new_secret
from sglang_wavepp.plane.messages import FlushCommand, PrefillWave, RankId, Span, WaveResult
from sglang_wavepp.plane.pipe import PullEnd, PushEnd
from sglang_wavepp.plane.result_link import ResultReceiver, ResultSender
from sglang_wavepp.plane.rounds_link import RoundsLeaderLink, RoundsMemberLink
from sglang_wavepp.plane.star import Hub, LinkError, Spoke, member_identity

SECRET = new_secret()
RANKS = {index: RankId(pp_rank=index, tp_rank=0, index=index) for index in (1, 2)}
T = TypeVar("T")


def soon(receive: Callable[[], T | None]) -> T:
    """What `receive` returns once it returns something."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        got = receive()
        if got is not None:
            return got
        time.sleep(0.001)
    raise AssertionError("nothing came")


@pytest.fixture
def gates() -> Iterator[tuple[Gate, Gate]]:
    gates = Gate(SECRET), Gate(SECRET)
    yield gates
    for gate in gates:
        gate.close()


@pytest.fixture
def star(gates: tuple[Gate, Gate]) -> tuple[Hub, dict[int, Spoke]]:
    socket, endpoint = gates[0].bound(zmq.ROUTER, "127.0.0.1")
    spokes = {
        index: Spoke(gates[1].connected(zmq.DEALER, endpoint, identity=member_identity(rank)), name="test")
        for index, rank in RANKS.items()
    }
    hub = Hub(socket, RANKS, name="test")
    for spoke in spokes.values():
        spoke.hello()
    hub.greet(deadline=time.monotonic() + 5)
    for spoke in spokes.values():
        spoke.await_hello(deadline=time.monotonic() + 5)
    return hub, spokes


def vote(rank: int) -> Vote:
    return Vote(round=1, rank=rank, applied_command=0, releases=0, hints={"r": None}, attempts={})


def test_a_round_goes_out_and_all_votes_come_back(star: tuple[Hub, dict[int, Spoke]]) -> None:
    leader = RoundsLeaderLink(star[0])
    members = {index: RoundsMemberLink(spoke) for index, spoke in star[1].items()}
    assert leader.members == 2
    assert leader.receive() is None
    record = InstallRecord(
        rid="r",
        epoch=0,
        token_ids=array("q", range(200_000)),
        max_new_tokens=1,
        cache_limit=9,
        extra_key=None,
        cache_salt=None,
        request={"priority": None},
    )
    opening = Broadcast(
        round=1, records=(record,), aborts=(), attempts=(), hints=(("r", 0),), after_command=0
    )
    leader.broadcast(opening)
    for index, member in members.items():
        assert soon(member.receive) == opening
        member.vote(vote(index))
    votes = sorted((soon(leader.receive) for _ in members), key=lambda v: v.rank)
    assert votes == [vote(1), vote(2)]
    closing = Gather(round=1, votes=(vote(0), *votes))
    leader.gather(closing)
    for member in members.values():
        assert soon(member.receive) == closing
        assert member.receive() is None


def test_a_member_can_not_vote_for_another(star: tuple[Hub, dict[int, Spoke]]) -> None:
    leader = RoundsLeaderLink(star[0])
    RoundsMemberLink(star[1][1]).vote(vote(2))
    with pytest.raises(CodecError, match="pp1 tp0"):
        soon(leader.receive)


def test_ten_thousand_commands_arrive_in_order_at_every_rank(star: tuple[Hub, dict[int, Spoke]]) -> None:
    leader = CommandLeaderLink(star[0])
    members = [CommandMemberLink(spoke) for spoke in star[1].values()]
    long = "x" * 100_000
    for seq in range(10_000):
        rid = long if seq % 1000 == 0 else "r"
        leader.send(PrefillWave(seq=seq, wave=seq, slot=0, spans=(Span(rid=rid, start=0, length=1),)))
    for member in members:
        for seq in range(10_000):
            command = soon(member.receive)
            assert isinstance(command, PrefillWave)
            assert command.seq == seq
        assert member.receive() is None


def test_what_does_not_belong_on_a_link_is_an_error(star: tuple[Hub, dict[int, Spoke]]) -> None:
    hub, spokes = star
    hub.send_all(encode(vote(0)))
    with pytest.raises(CodecError, match="Vote"):
        soon(CommandMemberLink(spokes[1]).receive)
    with pytest.raises(CodecError, match="Vote"):
        soon(RoundsMemberLink(spokes[2]).receive)
    spokes[1].send([b"noise"])
    with pytest.raises(CodecError):
        soon(RoundsLeaderLink(hub).receive)


def test_a_member_that_left_is_named(gates: tuple[Gate, Gate], star: tuple[Hub, dict[int, Spoke]]) -> None:
    star[1][2].socket.close()
    leader = CommandLeaderLink(star[0])

    def send() -> None:
        leader.send(FlushCommand(seq=1))

    with pytest.raises(LinkError, match="pp2 tp0 is gone: it has left the test link"):
        soon(send)


def test_who_did_not_greet_is_named(gates: tuple[Gate, Gate]) -> None:
    socket, endpoint = gates[0].bound(zmq.ROUTER, "127.0.0.1")
    spoke = Spoke(gates[1].connected(zmq.DEALER, endpoint, identity=b"1"), name="test")
    spoke.hello()
    with pytest.raises(LinkError, match=r"reached by pp2 tp0$"):
        Hub(socket, RANKS, name="test").greet(deadline=time.monotonic() + 0.3)


def test_results_come_back_in_order_also_within_one_process(gates: tuple[Gate, Gate]) -> None:
    socket, endpoint = gates[0].bound(zmq.PULL, "127.0.0.1")
    receiver = ResultReceiver(PullEnd(socket, name="result"))
    sender = ResultSender(PushEnd(gates[0].connected(zmq.PUSH, endpoint)))
    for wave in range(50):
        sender.send(WaveResult(wave=wave, token_ids=(wave, -1), logprobs={"a": b"\0"}))
    for wave in range(50):
        assert soon(receiver.receive) == WaveResult(wave=wave, token_ids=(wave, -1), logprobs={"a": b"\0"})
    assert receiver.receive() is None
