"""The servers that are compared, by name: which flags, which environment, which device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmark.paced.device_model import DeviceModel
from benchmark.paced.paced_server import CONTEXT, PacedConfig

SKIP_OUTPUTS = ("SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to serve.

    Attributes:
        name: stock arms begin with ``stock``.
        admission, planner: of WavePP; None for stock SGLang.
        double_ring: stock SGLang with ``--pp-async-batch-depth P``, which makes its ring ``2P`` (WavePP's always is).
        own_stream: stock SGLang's transfers get a stream of their own.
        chunk_divisor: ``--chunked-prefill-size`` is M divided by this.
        skip_outputs: chunks that end no prompt return nothing.
        dynamic: ``--enable-dynamic-chunking``.
        meaning: for people.
    """

    name: str
    meaning: str
    admission: str | None = None
    planner: str | None = None
    double_ring: bool = False
    own_stream: bool = False
    chunk_divisor: int = 1
    skip_outputs: bool = False
    dynamic: bool = False

    def config(
        self, *, pp: int, wave_tokens: int, device: DeviceModel, pool: int, shorten: int = 1
    ) -> PacedConfig:
        """The server of this arm.

        Args:
            wave_tokens: M.
            pool: tokens of a stage's cache.
            shorten: prompts are that many times shorter, and so is the context that each stage keeps room for.
        """
        options: list[str] = []
        if self.admission is not None:
            options += ["--wavepp-admission", self.admission, "--wavepp-planner", str(self.planner)]
        if self.double_ring:
            options += ["--pp-async-batch-depth", str(pp)]
        if self.dynamic:
            options += ["--enable-dynamic-chunking"]
        return PacedConfig(
            name=self.name,
            pp=pp,
            wavepp=self.admission is not None,
            chunk=wave_tokens // self.chunk_divisor,
            pool=pool,
            context=CONTEXT // shorten,
            options=tuple(options),
            environment=(SKIP_OUTPUTS,) if self.skip_outputs else (),
            device=replace(device, own_stream=self.own_stream),
        )


def _wavepp(name: str, admission: str, planner: str, meaning: str) -> Arm:
    return Arm(name=name, admission=admission, planner=planner, meaning=meaning)


_STOCK = (
    Arm(name="stock", meaning="SGLang's own loop, ring P"),
    Arm(name="stock-2p", meaning="ring 2P", double_ring=True),
    Arm(
        name="stock-stream",
        meaning="ring P, own stream: transfers have a stream of their own",
        own_stream=True,
    ),
    Arm(
        name="stock-2p-stream",
        meaning="ring 2P, own stream",
        double_ring=True,
        own_stream=True,
    ),
    Arm(
        name="stock-2p-stream-skip",
        meaning="the same, and chunks that end no prompt return nothing",
        double_ring=True,
        own_stream=True,
        skip_outputs=True,
    ),
    Arm(
        name="stock-stream-skip",
        meaning="ring P, own stream, chunks that end no prompt return nothing",
        own_stream=True,
        skip_outputs=True,
    ),
    *(
        Arm(
            name=f"stock-m{divisor}",
            meaning=f"ring 2P, own stream, chunks of M/{divisor}",
            double_ring=True,
            own_stream=True,
            chunk_divisor=divisor,
        )
        for divisor in (2, 4, 8)
    ),
    Arm(
        name="stock-dynamic",
        meaning="dynamic chunks, ring 2P, own stream",
        double_ring=True,
        own_stream=True,
        dynamic=True,
    ),
    Arm(
        name="stock-p-dynamic",
        meaning="dynamic chunks, ring P, own stream, chunks that end no prompt return nothing",
        own_stream=True,
        skip_outputs=True,
        dynamic=True,
    ),
)
_WAVEPP = (
    _wavepp("wavepp-inline", "inline", "static", "WavePP's loop and links, admission inside the loop"),
    _wavepp("wavepp-two-walk", "two-walk", "static", "admission on a thread of its own, by two walks"),
    _wavepp("wavepp-static", "lease", "static", "admission by leases, static waves of M tokens"),
    _wavepp("wavepp", "lease", "mpu", "admission by leases, waves sized by MPU"),
)
ARMS = {arm.name: arm for arm in (*_STOCK, *_WAVEPP)}
LADDER = ("stock", "wavepp-inline", "wavepp-two-walk", "wavepp-static", "wavepp")
STOCK_DEFAULT_CHUNK = (
    "stock",
    "stock-2p",
    "stock-stream",
    "stock-2p-stream",
    "stock-stream-skip",
    "stock-2p-stream-skip",
    "stock-p-dynamic",
    "stock-dynamic",
)
"""The stock arms of which the best two are measured beside WavePP."""


def arms_named(text: str) -> tuple[Arm, ...]:
    """The arms of a list of names, in its order; one that is named twice counts once.

    Raises:
        ValueError: there is no such arm, or none at all.
    """
    names = text.replace(",", " ").split()
    unknown = [name for name in names if name not in ARMS]
    if unknown or not names:
        raise ValueError(f"no such arm: {' '.join(unknown)}; there are {' '.join(ARMS)}")
    return tuple(ARMS[name] for name in dict.fromkeys(names))
