"""Ranks as real processes: forked, with a gloo world group, connected over loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import queue
import socket
import time
import traceback
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
import zmq

from sglang_wavepp.admission.messages import Broadcast, Gather, InstallRecord, Vote
from sglang_wavepp.plane.messages import FlushCommand, PrefillWave, RankId, Span, StopCommand, WaveResult
from sglang_wavepp.plane.star import Hub, Spoke
from sglang_wavepp.rank.startup import (
    HandshakeError,
    HandshakeInfo,
    Links,
    PoolSizes,
    bind_host,
    compare,
    connect,
    describe_pools,
)

pytestmark = pytest.mark.slow

T = TypeVar("T")
GRIDS = [(2, 1), (2, 2), (4, 1), (1, 1), (1, 2)]


def info(index: int = 0, *, pp_size: int = 2, tp_size: int = 1, **changed: Any) -> HandshakeInfo:
    plain = HandshakeInfo(
        rank=RankId.of(pp_rank=index // tp_size, tp_rank=index % tp_size, tp_size=tp_size),
        pp_size=pp_size,
        tp_size=tp_size,
        version="0.1.0",
        sglang_version="0.5.23",
        settings={"admission": "two-walk", "max_wave_tokens": 256},
        page_size=16,
        components=("FULL", "MAMBA"),
        hook_fingerprints={"Scheduler.run_batch": "abc"},
        pools=PoolSizes(tokens=4096, recurrent_slots=8, rows=4),
        pid=100 + index,
    )
    return dataclasses.replace(plain, **changed)


# --- comparing ----------------------------------------------------------------------------------------------


def test_equal_ranks_may_have_pools_of_different_size() -> None:
    other = info(1, pools=PoolSizes(tokens=1024, recurrent_slots=2, rows=4))
    assert compare([other, info(0)]) == []
    assert describe_pools([info(0), other]) == (
        "pools: 4096 tokens, 8 recurrent slots, 4 rows (pp0 tp0); 1024 tokens, 2 recurrent slots, 4 rows (pp1 tp0)"
    )
    assert describe_pools([info(0), info(1)]) == "pools: 4096 tokens, 8 recurrent slots, 4 rows (all ranks)"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"version": "0.2.0"}, "version is '0.2.0', on rank 0 it is '0.1.0'"),
        ({"sglang_version": "0.5.24"}, "sglang_version is '0.5.24', on rank 0 it is '0.5.23'"),
        ({"page_size": 64}, "page_size is 64, on rank 0 it is 16"),
        ({"components": ("FULL",)}, "components is ('FULL',), on rank 0 it is ('FULL', 'MAMBA')"),
        ({"pp_size": 4}, "pp_size is 4, on rank 0 it is 2"),
        ({"tp_size": 2}, "tp_size is 2, on rank 0 it is 1"),
        (
            {"settings": {"admission": "inline", "max_wave_tokens": 256}},
            "settings[admission] is 'inline', on rank 0 it is 'two-walk'",
        ),
        (
            {"settings": {"admission": "two-walk"}},
            "settings[max_wave_tokens] is nothing, on rank 0 it is 256",
        ),
        (
            {"hook_fingerprints": {"Scheduler.run_batch": "abc", "Scheduler.new": "f"}},
            "hook_fingerprints[Scheduler.new] is 'f', on rank 0 it is nothing",
        ),
    ],
)
def test_a_mismatch_names_the_rank_and_the_field(changed: dict[str, Any], line: str) -> None:
    assert compare([info(0), dataclasses.replace(info(1), **changed)]) == [f"pp1 tp0 (pid 101): {line}"]


def test_a_missing_or_doubled_rank_is_a_mismatch() -> None:
    assert compare([info(0), info(0)]) == ["pp 2 x tp 1 ranks were expected, got indices [0, 0]"]
    assert compare([info(0)]) == ["pp 2 x tp 1 ranks were expected, got indices [0]"]


def test_a_field_is_either_compared_or_known_to_differ() -> None:
    may_differ = {"rank", "pid", "host", "pools"}
    for field in dataclasses.fields(HandshakeInfo):
        value = getattr(info(1), field.name)
        changed: Any = {"?": "?"} if isinstance(value, dict) else ("?",) if isinstance(value, tuple) else "?"
        if field.name not in may_differ:
            assert compare([info(0), dataclasses.replace(info(1), **{field.name: changed})]), field.name


# --- where to listen ----------------------------------------------------------------------------------------


def test_ranks_on_one_host_listen_on_loopback_only() -> None:
    assert bind_host([info(0), info(1)], "203.0.113.7:5000") == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (None, "is needed"),
        ("127.0.0.1:5000", "loopback"),
        ("no-such-host.invalid:1", "reached"),
        ("10.0.0.1", "reached"),
    ],
)
def test_ranks_on_several_hosts_need_an_address_that_all_can_reach(address: str | None, words: str) -> None:
    with pytest.raises(HandshakeError, match=words):
        bind_host([info(0, host="a"), info(1, host="b")], address)


def test_ranks_on_several_hosts_listen_where_the_init_address_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            assert address == ("203.0.113.7", 5000)

        def getsockname(self) -> Any:
            return ("203.0.113.9", 40000)

    monkeypatch.setattr(socket, "socket", Probe)
    assert bind_host([info(0, host="a"), info(1, host="b")], "203.0.113.7:5000") == "203.0.113.9"


# --- real processes -----------------------------------------------------------------------------------------


def soon(receive: Callable[[], T | None], seconds: float = 20) -> T:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        got = receive()
        if got is not None:
            return got
        time.sleep(0.0005)
    raise AssertionError("nothing came")


def run_ranks(
    tmp_path: Path, grid: tuple[int, int], body: Callable[[Links, Any], Any], **changed: Any
) -> list[Any]:
    """What `body(links, barrier)` returned on each rank, or the text of its exception."""
    pp_size, tp_size = grid
    world = pp_size * tp_size
    context: Any = multiprocessing.get_context("fork")
    answers = context.Queue()
    barrier = context.Barrier(world)

    def main(index: int) -> None:
        torch.set_num_threads(1)  # a forked child can't use its parent's thread pool
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{tmp_path}/store", rank=index, world_size=world
            )
            mine = info(
                index, pp_size=pp_size, tp_size=tp_size, pid=os.getpid(), **changed.get(str(index), {})
            )
            group = dist.distributed_c10d._get_default_group()
            links = connect(mine, group=group, timeout=20)
            answer = body(links, barrier)
            barrier.wait(20)
            started = time.monotonic()
            links.close()
            assert time.monotonic() - started < 3, "closing took too long"
            answers.put((index, answer))
        except HandshakeError as error:
            answers.put((index, f"HandshakeError: {error}"))
        except BaseException:
            answers.put((index, traceback.format_exc()))

    ranks = [context.Process(target=main, args=(index,)) for index in range(world)]
    for rank in ranks:
        rank.start()
    got: dict[int, Any] = {}
    try:
        for _ in ranks:
            index, answer = answers.get(timeout=90)
            got[index] = answer
    except queue.Empty:
        pytest.fail(f"ranks that hang: {sorted(set(range(world)) - set(got))}; others: {got}")
    finally:
        for rank in ranks:
            rank.join(5)
            if rank.is_alive():
                rank.kill()
                rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * world
    return [got[index] for index in range(world)]


def everything(links: Links, barrier: Any) -> str:
    """Use every link of the rank, as a server does."""
    others = len(links.infos) - 1
    lead, pp_size = links.rank.index == 0, links.infos[0].pp_size
    last = links.rank.pp_rank == pp_size - 1
    record = InstallRecord(
        rid="r",
        epoch=0,
        token_ids=array("q", range(100_000)),
        max_new_tokens=1,
        cache_limit=9,
        extra_key=None,
        cache_salt=None,
        request={},
    )
    opening = Broadcast(round=1, records=(record,), aborts=(), attempts=(), hints=(), after_command=0)
    mine = Vote(round=1, rank=links.rank.index, applied_command=0, releases=0, hints={}, attempts={})
    if lead:
        assert links.rounds_leader is not None
        assert links.command_leader is not None
        links.rounds_leader.broadcast(opening)
        votes = sorted(
            [mine, *(soon(links.rounds_leader.receive) for _ in range(others))], key=lambda v: v.rank
        )
        links.rounds_leader.gather(Gather(round=1, votes=tuple(votes)))
        for seq in range(10_000):
            rid = "x" * (100_000 if seq % 1000 == 0 else 1)
            links.command_leader.send(
                PrefillWave(seq=seq, wave=seq, slot=0, spans=(Span(rid=rid, start=0, length=1),))
            )
    else:
        assert links.rounds_member is not None
        assert links.command_member is not None
        assert soon(links.rounds_member.receive) == opening
        links.rounds_member.vote(mine)
        gather = soon(links.rounds_member.receive)
        assert isinstance(gather, Gather)
        assert [vote.rank for vote in gather.votes] == list(range(others + 1))
        for seq in range(10_000):
            command = soon(links.command_member.receive)
            assert isinstance(command, PrefillWave)
            assert command.seq == seq
    for wave in range(20):
        if links.rank.pp_rank:
            assert links.activation_receiver is not None
            activation = soon(links.activation_receiver.receive)
            hidden = activation.tensors["hidden_states"]
            expected = float(wave * 100 + links.rank.pp_rank - 1 + links.rank.tp_rank * 10)
            assert activation.wave == wave
            assert bool((hidden == expected).all())
        if not last:
            assert links.activation_sender is not None
            value = float(wave * 100 + links.rank.pp_rank + links.rank.tp_rank * 10)
            links.activation_sender.send(wave, {"hidden_states": torch.full((64, 1024), value)})
        if last and links.rank.tp_rank == 0:
            assert links.result_sender is not None
            links.result_sender.send(WaveResult(wave=wave, token_ids=(wave,), logprobs=None))
    if lead:
        assert links.result_receiver is not None
        for wave in range(20):
            assert soon(links.result_receiver.receive) == WaveResult(
                wave=wave, token_ids=(wave,), logprobs=None
            )
    assert (links.activation_receiver is None) == (links.rank.pp_rank == 0)
    assert (links.activation_sender is None) == last
    assert (links.result_sender is None) == (not last or links.rank.tp_rank != 0)
    assert isinstance(links.heartbeat, Hub if lead else Spoke)
    return ", ".join(links.watched.values())


@pytest.mark.parametrize("grid", GRIDS)
def test_connected_ranks_can_use_every_link(tmp_path: Path, grid: tuple[int, int]) -> None:
    answers = run_ranks(tmp_path, grid, everything)
    for answer in answers[1:]:
        assert answer.startswith("pp0 tp0 (pid "), answer
    assert answers[0].count("pid") == len(answers) - 1, answers[0]


def test_a_mismatch_is_refused_by_every_rank_with_the_same_words(tmp_path: Path) -> None:
    answers = run_ranks(tmp_path, (2, 2), everything, **{"3": {"page_size": 64}})
    assert len(set(answers)) == 1
    assert "HandshakeError: the ranks of this server differ: pp1 tp1 (pid " in answers[0]
    assert "page_size is 64, on rank 0 it is 16" in answers[0]


def test_a_rank_that_can_not_listen_is_named_by_every_rank(tmp_path: Path) -> None:
    """Ranks on two hosts without an address: nobody is left waiting for the one that failed."""
    answers = run_ranks(tmp_path, (2, 1), everything, **{"1": {"host": "elsewhere"}})
    assert len(set(answers)) == 1
    assert "pp0 tp0" in answers[0]
    assert "--dist-init-addr is needed" in answers[0]


def endpoints_of(links: Links) -> list[str]:
    ends = [links.rounds_leader, links.result_receiver, links.activation_receiver, links.heartbeat]
    sockets: list[Any] = [end.socket for end in ends if end is not None]
    return [s.last_endpoint.rstrip(b"\0").decode() for s in sockets if s.type in (zmq.ROUTER, zmq.PULL)]


def with_strangers(links: Links, barrier: Any) -> str:
    """Bad credentials, none and noise on every listening socket, before and while the server talks."""
    strangers = zmq.Context()
    for endpoint in endpoints_of(links):
        for kind in (zmq.PUSH, zmq.DEALER):
            for credentials in ({}, {"plain_username": b"rank", "plain_password": b"guess"}):
                stranger = strangers.socket(kind)
                stranger.linger = 0
                for option, value in credentials.items():
                    setattr(stranger, option, value)
                stranger.connect(endpoint)
                for _ in range(20):
                    with contextlib.suppress(zmq.Again):  # a refused socket has nowhere to send
                        stranger.send_multipart([b"evil", b"frames"], zmq.NOBLOCK)
        host, port = endpoint.removeprefix("tcp://").split(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port))) as noise:
            noise.sendall(os.urandom(10_000))
    barrier.wait(20)
    time.sleep(0.2)
    everything(links, barrier)
    barrier.wait(20)
    for end in (links.rounds_leader, links.result_receiver, links.activation_receiver, links.heartbeat):
        assert end is None or end.receive() is None
    strangers.destroy(linger=0)
    return "quiet"


def test_strangers_are_ignored(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, (2, 1), with_strangers) == ["quiet", "quiet"]


def leave_without_reading(links: Links, barrier: Any) -> str:
    """Large messages on every link that nobody reads; the caller measures how long closing takes."""
    if links.command_leader is not None:
        for seq in range(20):
            links.command_leader.send(StopCommand(seq=seq, reason="x" * 1_000_000))
    if links.activation_sender is not None:
        for wave in range(20):
            links.activation_sender.send(wave, {"hidden_states": torch.zeros(1024, 1024)})
    return "left"


def test_closing_with_unread_messages_does_not_hang(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, (2, 1), leave_without_reading) == ["left", "left"]


def last_words(links: Links, barrier: Any) -> str:
    if links.command_leader is not None:
        links.command_leader.send(StopCommand(seq=1, reason="over"))
        links.close()
        return "over"
    assert links.command_member is not None
    stop = soon(links.command_member.receive)
    assert isinstance(stop, StopCommand | FlushCommand)
    return stop.reason if isinstance(stop, StopCommand) else "flush"


def test_the_last_command_arrives_although_its_sender_closes_at_once(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, (2, 1), last_words) == ["over", "over"]
