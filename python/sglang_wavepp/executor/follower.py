"""The LOOP of every rank but rank 0: does what the command stream says, in its order.

It waits for three things only: the next command, the activations of the wave that is next, and the installation of a
request that a wave names. It never decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from sglang_wavepp.admission.messages import InstallRecord
from sglang_wavepp.executor.admission_port import AdmissionPort
from sglang_wavepp.executor.stage import Stage
from sglang_wavepp.plane.activation_link import Activation, ActivationReceiver
from sglang_wavepp.plane.command_link import CommandMemberLink
from sglang_wavepp.plane.messages import (
    AbortCommand,
    Command,
    DecodeWave,
    FlushCommand,
    PrefillWave,
    ResultCommand,
    StopCommand,
)
from sglang_wavepp.rank.handover import Handover

logger = logging.getLogger(__name__)


class Installing(Protocol):
    """Builds requests from their records."""

    def install(self, record: InstallRecord) -> None:
        """Build a request, or begin to."""

    def finish(self) -> bool:
        """Build what could not be built at once and now can; whether anything was."""

    def withdraw(self, rid: str) -> None:
        """Forget a request that left admission without being admitted."""


class Follower:
    """The executor of a rank that isn't rank 0.

    Args:
        scheduler: SGLang's scheduler of this rank.
        stage: applies commands on this rank.
        commands: link from rank 0.
        activations: link from the stage before, None on the first stage.
        handover: meeting point with the admission thread.
        admission: how this LOOP takes part in admission.
        installer: builds requests from their records.
        drop: drops all cached content of this rank.
    """

    def __init__(
        self,
        *,
        scheduler: Any,
        stage: Stage,
        commands: CommandMemberLink,
        activations: ActivationReceiver | None,
        handover: Handover,
        admission: AdmissionPort,
        installer: Installing,
        drop: Callable[[], bool],
    ) -> None:
        self._scheduler = scheduler
        self._stage = stage
        self._commands = commands
        self._activations = activations
        self._handover = handover
        self._admission = admission
        self._installer = installer
        self._drop = drop
        self._todo: deque[Command] = deque()
        self._arrived: deque[Activation] = deque()
        self._was_busy = True
        self._stopped = False

    def run(self) -> None:
        """Follow until rank 0 says stop."""
        poller = zmq.Poller()
        for source in self._sources():
            poller.register(source, zmq.POLLIN)
        while not self._stopped:
            progressed = self._take_admissions()
            progressed |= self._take_messages()
            while not self._stopped and self._todo and self._is_ready(self._todo[0]):
                self._apply(self._todo.popleft())
                progressed = True
                # Results free slots and capacity, so look for them between two waves.
                self._take_messages()
                self._take_admissions()
            if progressed:
                self._was_busy = True
                continue
            self._when_idle()
            poller.poll(self._admission.patience_ms())

    def _sources(self) -> list[Any]:
        sources = [self._commands.socket, self._handover.loop_wake.fileno(), *self._admission.sources()]
        if self._activations is not None:
            sources.append(self._activations.socket)
        return sources

    def _take_admissions(self) -> bool:
        self._handover.loop_wake.clear()
        progressed = self._admission.serve()
        installed, withdrawn = self._handover.pop_changes()
        for record in installed:
            self._installer.install(record)
        for rid in withdrawn:
            self._installer.withdraw(rid)
        return self._installer.finish() or progressed or bool(installed or withdrawn)

    def _take_messages(self) -> bool:
        progressed = False
        while (command := self._commands.receive()) is not None:
            self._todo.append(command)
            progressed = True
        if self._activations is not None:
            while (activation := self._activations.receive()) is not None:
                self._arrived.append(activation)
                progressed = True
        return progressed

    def _is_ready(self, command: Command) -> bool:
        match command:
            case PrefillWave(spans=spans):
                installed = all(span.rid in self._stage.entries for span in spans)
                return installed and self._has_activation()
            case DecodeWave():
                return self._has_activation()
            case AbortCommand(rid=rid):
                return rid in self._stage.entries
            case _:
                return True

    def _has_activation(self) -> bool:
        return self._activations is None or bool(self._arrived)

    def _apply(self, command: Command) -> None:
        match command:
            case PrefillWave():
                self._stage.launch_prefill(command, self._activation_of(command.wave))
            case DecodeWave():
                self._stage.launch_decode(command, self._activation_of(command.wave))
            case ResultCommand():
                self._stage.apply_result(command)
            case AbortCommand():
                self._stage.apply_abort(command)
            case FlushCommand():
                with self._stage.mutex:
                    if not self._drop():
                        raise RuntimeError(
                            "rank 0 found the server idle and flushed it, but a request runs or holds room here"
                        )
            case StopCommand(reason=reason):
                logger.info("rank 0 ends the server: %s", reason)
                self._scheduler.gracefully_exit = True
                self._stopped = True
        self._handover.applied_command(command.seq)

    def _activation_of(self, wave: int) -> Activation | None:
        if self._activations is None:
            return None
        activation = self._arrived.popleft()
        if activation.wave != wave:
            raise RuntimeError(f"wave {wave} is next, but the activations of wave {activation.wave} came")
        return activation

    def is_idle(self) -> bool:
        """Whether no request uses this rank's pools: it may be flushed.

        Requests may have been announced already. Installation records and commands take different ways, so the record
        of a request that arrived after a flush can be here before the flush.
        """
        return self._stage.holds_nothing()

    def _when_idle(self) -> None:
        if not self._was_busy or not self._stage.is_idle():
            return
        with self._stage.mutex:
            # A request that the admission thread holds room for was announced in an earlier round, so the LOOP knows
            # it or finds it here.
            if self._handover.has_changes:
                return
            self._was_busy = False
            self._scheduler.on_idle()
            self._stage.leases.check_idle()
        self._stage.when_idle()
