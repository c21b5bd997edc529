"""Start-up of one rank: compare what the ranks are, then connect them.

The only step of WavePP that uses torch.distributed's world group: two gathers, once. Whatever must be equal on all
ranks is compared there, by every rank alike, so that all of them refuse with the same words.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import zmq

from sglang_wavepp.plane.activation_link import ActivationReceiver, ActivationSender, DevicePath
from sglang_wavepp.plane.command_link import CommandLeaderLink, CommandMemberLink
from sglang_wavepp.plane.gate import Gate, new_secret
from sglang_wavepp.plane.messages import RankId
from sglang_wavepp.plane.pipe import PullEnd, PushEnd
from sglang_wavepp.plane.result_link import ResultReceiver, ResultSender
from sglang_wavepp.plane.rounds_link import RoundsLeaderLink, RoundsMemberLink
from sglang_wavepp.plane.star import Hub, LinkError, Spoke, member_identity

logger = logging.getLogger(__name__)

T = TypeVar("T")


class HandshakeError(RuntimeError):
    """The ranks can't form one server; one message that names each rank and field."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """What a rank can hold: KV tokens, recurrent state slots (0 without such layers), request rows."""

    tokens: int
    recurrent_slots: int
    rows: int


@dataclass(frozen=True, slots=True)
class HandshakeInfo:
    """What one rank tells the others. All but `rank`, `pid`, `host` and `pools` must be equal everywhere.

    Attributes:
        version: of this package.
        sglang_version: of SGLang.
        settings: every flag that all ranks must agree on, by name.
        page_size: tokens.
        components: kinds of cache, in the tree's order.
        hook_fingerprints: hooked symbol of SGLang -> fingerprint of its source.
        host: equal for two ranks exactly when they can talk over loopback.
    """

    rank: RankId
    pp_size: int
    tp_size: int
    version: str
    sglang_version: str
    settings: Mapping[str, Any]
    page_size: int
    components: tuple[str, ...]
    hook_fingerprints: Mapping[str, str]
    pools: PoolSizes
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=lambda: this_host())

    @property
    def label(self) -> str:
        """How errors call the rank, such as "pp1 tp0 (pid 123)"."""
        return f"{self.rank.name} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """How activations travel when they lie on a device.

    Attributes:
        group: the process group of this rank's pipeline, one rank per stage in stage order, with a device backend.
        device: where this rank's tensors lie.
        forward_stream: the stream that forwards run on.
    """

    group: dist.ProcessGroup
    device: torch.device
    forward_stream: torch.Stream


@dataclass(frozen=True, slots=True)
class Links:
    """Everything that connects this rank to the others; each field None where the rank has no such end.

    Attributes:
        infos: of all ranks, by index.
        result_sender: on the last stage's first TP rank.
        activation_sender: to the next stage. activation_receiver: from the one before.
        heartbeat: for `rank.heartbeat.Heartbeat`.
    """

    rank: RankId
    infos: tuple[HandshakeInfo, ...]
    rounds_leader: RoundsLeaderLink | None
    rounds_member: RoundsMemberLink | None
    command_leader: CommandLeaderLink | None
    command_member: CommandMemberLink | None
    result_sender: ResultSender | None
    result_receiver: ResultReceiver | None
    activation_sender: ActivationSender | None
    activation_receiver: ActivationReceiver | None
    heartbeat: Hub | Spoke
    gate: Gate

    @property
    def watched(self) -> dict[int, str]:
        """Labels of the ranks that this one's heartbeat watches, by index."""
        if self.rank.index:
            return {0: self.infos[0].label}
        return {info.rank.index: info.label for info in self.infos[1:]}

    def close(self) -> None:
        """Close every socket within about half a second. No thread may use a link any more (heartbeat too)."""
        self.gate.close()


def this_host() -> str:
    """Name of this machine and its boot: equal for two processes that share a loopback interface."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def compare(infos: Sequence[HandshakeInfo]) -> list[str]:
    """Every way in which a rank differs from rank 0 and must not; one line each, empty when all is well.

    Args:
        infos: of all ranks, in any order.
    """
    ordered = sorted(infos, key=lambda info: info.rank.index)
    lead = ordered[0]
    lines = []
    indices = [info.rank.index for info in ordered]
    if indices != list(range(lead.pp_size * lead.tp_size)):
        lines.append(f"pp {lead.pp_size} x tp {lead.tp_size} ranks were expected, got indices {indices}")
    for info in ordered[1:]:
        for name in ("pp_size", "tp_size", "version", "sglang_version", "page_size", "components"):
            lines += _difference(info, name, getattr(info, name), getattr(lead, name))
        for name in ("settings", "hook_fingerprints"):
            mine, theirs = getattr(info, name), getattr(lead, name)
            for key in sorted({*mine, *theirs}):
                lines += _difference(
                    info, f"{name}[{key}]", mine.get(key, _MISSING), theirs.get(key, _MISSING)
                )
    return lines


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def _difference(info: HandshakeInfo, name: str, value: object, of_rank_0: object) -> list[str]:
    if type(value) is type(of_rank_0) and (value == of_rank_0 or isinstance(value, _Missing)):
        return []
    return [f"{info.label}: {name} is {value!r}, on rank 0 it is {of_rank_0!r}"]


def describe_pools(infos: Sequence[HandshakeInfo]) -> str:
    """One line with the pool sizes of all ranks; equal ones are told once."""
    by_size: dict[PoolSizes, list[str]] = {}
    for info in infos:
        by_size.setdefault(info.pools, []).append(info.rank.name)
    parts = [
        f"{pools.tokens} tokens, {pools.recurrent_slots} recurrent slots, {pools.rows} rows"
        f" ({'all ranks' if len(by_size) == 1 else ', '.join(names)})"
        for pools, names in by_size.items()
    ]
    return "pools: " + "; ".join(parts)


def bind_host(infos: Sequence[HandshakeInfo], dist_init_addr: str | None) -> str:
    """The IP address that this rank's sockets listen on.

    Loopback when all ranks share a host, else the interface through which `dist_init_addr` (host:port) is reached.

    Raises:
        HandshakeError: several hosts, and the address is missing, unknown or loopback here.
    """
    if len({info.host for info in infos}) == 1:
        return "127.0.0.1"
    if not dist_init_addr:
        raise HandshakeError("ranks run on several hosts: --dist-init-addr is needed")
    host, _, port = dist_init_addr.rpartition(":")
    try:
        family, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # a datagram socket sends nothing here; it only asks for the route
            address = str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise HandshakeError(f"--dist-init-addr {dist_init_addr} can't be reached: {error}") from error
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise HandshakeError(
            f"ranks run on several hosts, but --dist-init-addr {dist_init_addr} is loopback here"
        )
    return address


def connect(
    info: HandshakeInfo,
    *,
    group: dist.ProcessGroup,
    dist_init_addr: str | None = None,
    device_group: DeviceGroup | None = None,
    timeout: float = 60.0,
) -> Links:
    """Compare this rank with all others and connect them. Every rank calls it, once, at the same point.

    Args:
        info: what this rank is.
        group: CPU group of all ranks of the server.
        dist_init_addr: as SGLang has it; used when the ranks run on several hosts.
        device_group: None when activations lie on the CPU.
        timeout: seconds for all connections to stand.

    Raises:
        HandshakeError: the ranks differ in what must be equal, or can't be connected.
    """
    offers = _gather((info, new_secret() if info.rank.index == 0 else None), group)
    infos = tuple(sorted((offer[0] for offer in offers), key=lambda other: other.rank.index))
    mismatches = compare(infos)
    if mismatches:
        raise HandshakeError("the ranks of this server differ: " + "; ".join(mismatches))
    secret = next(offer[1] for offer in offers if offer[1] is not None)
    if info.rank.index == 0:
        logger.info(describe_pools(infos))
    gate = Gate(secret)
    try:
        return _connect(gate, infos, info.rank, group, dist_init_addr, device_group, timeout)
    except BaseException:
        gate.close()
        raise


def _connect(
    gate: Gate,
    infos: tuple[HandshakeInfo, ...],
    rank: RankId,
    group: dist.ProcessGroup,
    dist_init_addr: str | None,
    device_group: DeviceGroup | None,
    timeout: float,
) -> Links:
    deadline = time.monotonic() + timeout
    lead = infos[0]
    last = lead.pp_size - 1
    members = {other.rank.index: other.rank for other in infos[1:]}
    sockets: dict[str, zmq.Socket[bytes]] = {}
    endpoints: dict[str, str] = {}
    problem: HandshakeError | None = None
    try:
        host = bind_host(infos, dist_init_addr)
        kinds = dict.fromkeys(_STARS, zmq.ROUTER) | {"result": zmq.PULL} if rank.index == 0 else {}
        if rank.pp_rank > 0:
            kinds["activation"] = zmq.PULL
        for name, kind in kinds.items():
            sockets[name], endpoints[name] = gate.bound(kind, host)
    except (HandshakeError, zmq.ZMQError) as error:
        problem = HandshakeError(f"{infos[rank.index].label}: {error}")
    # Also after a failure: a rank that left before this gather would leave the others waiting in it.
    answers: list[tuple[dict[str, str], str | None]] = _by_rank(
        _gather((rank.index, (endpoints, None if problem is None else str(problem))), group)
    )
    failures = [failure for _, failure in answers if failure is not None]
    if failures:
        raise HandshakeError("; ".join(failures)) from problem
    at = [endpoints for endpoints, _ in answers]

    hubs: dict[str, Hub] = {}
    spokes: dict[str, Spoke] = {}
    for name in _STARS:
        if rank.index == 0:
            hubs[name] = Hub(sockets[name], members, name=name)
        else:
            identity = member_identity(rank)
            spokes[name] = Spoke(gate.connected(zmq.DEALER, at[0][name], identity=identity), name=name)
    result_push = None
    if rank.pp_rank == last and rank.tp_rank == 0:
        result_push = PushEnd(gate.connected(zmq.PUSH, at[0]["result"]))
    activation_push = None
    if rank.pp_rank < last:
        following = RankId.of(pp_rank=rank.pp_rank + 1, tp_rank=rank.tp_rank, tp_size=lead.tp_size)
        activation_push = PushEnd(gate.connected(zmq.PUSH, at[following.index]["activation"]))
    result_pull = PullEnd(sockets["result"], name="result") if rank.index == 0 else None
    activation_pull = PullEnd(sockets["activation"], name="activation") if rank.pp_rank > 0 else None

    links = Links(
        rank=rank,
        infos=infos,
        rounds_leader=RoundsLeaderLink(hubs["rounds"]) if hubs else None,
        rounds_member=RoundsMemberLink(spokes["rounds"]) if spokes else None,
        command_leader=CommandLeaderLink(hubs["command"]) if hubs else None,
        command_member=CommandMemberLink(spokes["command"]) if spokes else None,
        result_sender=ResultSender(result_push) if result_push else None,
        result_receiver=ResultReceiver(result_pull) if result_pull else None,
        activation_sender=ActivationSender(activation_push, _path(device_group, rank.pp_rank + 1))
        if activation_push
        else None,
        activation_receiver=ActivationReceiver(activation_pull, _path(device_group, rank.pp_rank - 1))
        if activation_pull
        else None,
        heartbeat=hubs["heartbeat"] if hubs else spokes["heartbeat"],
        gate=gate,
    )
    try:
        for end in (*spokes.values(), result_push, activation_push):
            if end is not None:
                end.hello()
        for hub in hubs.values():
            hub.greet(deadline=deadline)
        for waiting in (*spokes.values(), result_pull, activation_pull):
            if waiting is not None:
                waiting.await_hello(deadline=deadline)
        # In stage order, so that no two stages wait for each other.
        if links.activation_receiver is not None:
            links.activation_receiver.warm_up(deadline=deadline)
        if links.activation_sender is not None:
            links.activation_sender.warm_up()
    except LinkError as error:
        raise HandshakeError(f"{infos[rank.index].label}: {error}") from error
    return links


_STARS = ("rounds", "command", "heartbeat")


def _path(device_group: DeviceGroup | None, stage: int) -> DevicePath | None:
    if device_group is None:
        return None
    return DevicePath(
        group=device_group.group,
        peer=stage,
        device=device_group.device,
        comm_stream=torch.get_device_module(device_group.device).Stream(),
        forward_stream=device_group.forward_stream,
    )


def _gather(mine: T, group: dist.ProcessGroup) -> list[T]:
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, mine, group=group)
    return gathered


def _by_rank(gathered: Sequence[tuple[int, T]]) -> list[T]:
    return [value for _, value in sorted(gathered, key=lambda item: item[0])]
