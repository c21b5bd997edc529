"""Rank 0's ordered command stream to the LOOP of every other rank."""

from __future__ import annotations

from typing import cast, get_args

import zmq

from sglang_wavepp.plane.codec import CodecError, decode, encode
from sglang_wavepp.plane.messages import Command
from sglang_wavepp.plane.star import Hub, Spoke

_COMMANDS: tuple[type, ...] = get_args(Command)


class CommandLeaderLink:
    """Rank 0's end; it only sends."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def send(self, command: Command) -> None:
        """Queue a command for every other rank, in the same order for all; never waits.

        Raises:
            LinkError: a rank has left.
            CodecError: the command has no wire form; nothing was sent.
        """
        if self._hub.members:
            self._hub.send_all(encode(command))


class CommandMemberLink:
    """Another rank's end; it only receives."""

    def __init__(self, spoke: Spoke) -> None:
        self._spoke = spoke

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For a poller; readable when commands wait."""
        return self._spoke.socket

    def receive(self) -> Command | None:
        """The next command, None when none has come.

        Raises:
            CodecError: what came is no command.
        """
        frames = self._spoke.receive()
        if frames is None:
            return None
        message = decode(frames)
        if not isinstance(message, _COMMANDS):
            raise CodecError(f"command link: rank 0 sent {type(message).__name__}")
        return cast(Command, message)
