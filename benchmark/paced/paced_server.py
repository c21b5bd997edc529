"""Servers on a paced device."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.configuration import ServerConfig
from benchmark.paced import plugin
from benchmark.paced.device_model import VARIABLE, DeviceModel
from benchmark.paced.memory import see_room
from benchmark.paced.model_folder import paced_model_folder
from benchmark.servers import CHECKOUT, Server, ServerError
from sglang_wavepp.cpu.models.configurations import ModelKind

CONTEXT = 600_000
"""Tokens of the longest prompt that is played, before it is shortened."""
START_SECONDS = 600.0
NO_FIT = b"Failed to fit the chunk-size predictor"
STARTS = 3
"""How often a server is started whose dynamic chunks find no fit."""


@dataclass(frozen=True, kw_only=True)
class PacedConfig:
    """A server on a paced device. Sizes in tokens.

    Attributes:
        name: what the arm is called; also in file names.
        chunk: ``--chunked-prefill-size``.
        context: ``--context-length``; each stage keeps four bytes of it for every request that may run.
        options: further options, such as ``--pp-async-batch-depth 8``.
        environment: further environment variables, as pairs.
    """

    name: str
    pp: int = 8
    wavepp: bool = False
    chunk: int = 4096
    pool: int = 2_097_152
    context: int = CONTEXT
    running: int = 64
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    device: DeviceModel = field(default_factory=DeviceModel)

    def server_config(self, folder: Path) -> ServerConfig:
        """What `benchmark.servers` starts. Traces and the scale file lie in `folder`."""
        options = (
            *("--model-path", str(paced_model_folder()), "--load-format", "dummy", "--sleep-on-idle"),
            *(
                "--mem-fraction-static",
                "0.9",
                "--context-length",
                str(self.context),
                "--attention-backend",
                "torch_native",
            ),
            *("--max-prefill-tokens", str(self.chunk), *self.options),
        )
        paths = (CHECKOUT / "python", CHECKOUT, plugin.SITE, *filter(None, [os.environ.get("PYTHONPATH")]))
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            VARIABLE: self.device.to_json(),
            plugin.TRACE_VARIABLE: str(folder),
            plugin.SCALE_VARIABLE: str(folder / "scale"),
            plugin.PROFILE_VARIABLE: os.environ.get(plugin.PROFILE_VARIABLE, ""),
            **dict(self.environment),
        }
        return ServerConfig(
            model=ModelKind.DENSE,
            pp=self.pp,
            wavepp=self.wavepp,
            chunk=self.chunk,
            pool=self.pool,
            running=self.running,
            options=options,
            environment=tuple(environment.items()),
        )


class NoFitError(ServerError):
    """SGLang found no curve through its measurements for dynamic chunks: it serves with chunks of one size."""


class PacedServer(Server):
    """A server whose stages write a trace, and whose device can be made faster or slower between measurements.

    Attributes:
        traces: folder of the stages' traces.
        primed: lengths of the prefixes that are in its cache.
        filled: tokens that its cache got since it was emptied.
    """

    def __init__(self, config: PacedConfig, folder: Path) -> None:
        self.primed: set[int] = set()
        self.filled = 0
        self.traces = (folder / f"{config.name}.stages").resolve()
        shutil.rmtree(self.traces, ignore_errors=True)
        self.traces.mkdir(parents=True)
        self.paced = config
        self.set_scale(config.device.scale)
        super().__init__(config.server_config(self.traces), folder, start_seconds=START_SECONDS)

    def start(self, progress: Callable[[str], None] | None = None) -> None:
        """See `Server.start`.

        Raises:
            ServerError: see there.
            NoFitError: nothing is left running.
        """
        super().start(progress)
        if NO_FIT in self.log.read_bytes():
            self.stop()
            raise NoFitError(
                f"SGLang could not fit its dynamic chunks, so {self.paced.name} is not what it says"
            )

    def set_scale(self, scale: float) -> None:
        """How fast the device runs from the next wave on."""
        draft = self.traces / "scale.draft"
        draft.write_text(repr(scale))
        draft.rename(self.traces / "scale")


def start_another(
    config: PacedConfig,
    folder: Path,
    started: Sequence[PacedServer],
    ending: ExitStack,
    progress: Callable[[str], None],
) -> PacedServer:
    """Start a server beside others, if it fits into memory.

    Args:
        folder: for logs and traces.
        started: the others; the last one says how much memory a server needs.
        ending: stops the server.

    Raises:
        ServerError: there is no room for it, or it didn't start.
    """
    if started:
        see_room(started[-1].processes())
    for left in reversed(range(STARTS)):
        server = PacedServer(config, folder)
        ending.callback(server.stop)
        try:
            server.start(progress)
            break
        except NoFitError:  # what else the machine did meanwhile has disturbed SGLang's measurement
            if not left:
                raise
            progress("no fit for dynamic chunks, starting again")
    return server
