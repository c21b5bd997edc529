"""What the paced device is told: how long a stage takes for a wave, and what a launch costs the host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

#: Environment variable that holds a `DeviceModel` as JSON; the device is active only where it is set.
VARIABLE = "WAVEPP_PACED_DEVICE"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """``(per_wave + per_token * tokens + per_pair * sum(tokens * context)) * stage factor / scale`` seconds a stage.

    Attributes:
        per_wave: seconds that a wave costs however small it is: launches of kernels, and reading the weights.
        per_token: seconds a token.
        per_pair: seconds per token and token of its context.
        transfer_per_token: seconds from the end of a forward to its activations being on the next stage, per token.
        launch: seconds that the host is busy with launching a forward.
        launch_holds_lock: whether other Python threads have to wait during a launch.
        factors: how much longer a stage takes than the model says, by stage; stages beyond the last factor take 1.
        scale: how much faster than the model the device runs; 0.5 is half as fast. Covers transfers and launches.
        own_stream: stock SGLang's transfers get a stream of their own, as ``SGLANG_PP_COMM_OVERLAP=1`` gives on CUDA.
    """

    per_wave: float = 8e-3
    per_token: float = 17.5e-6
    per_pair: float = 1.4e-10
    transfer_per_token: float = 0.0
    launch: float = 0.0
    launch_holds_lock: bool = False
    factors: tuple[float, ...] = ()
    scale: float = 1.0
    own_stream: bool = False

    def __post_init__(self) -> None:
        costs = (self.per_wave, self.per_token, self.per_pair, self.transfer_per_token, self.launch)
        if min(costs) < 0 or self.scale <= 0 or min(self.factors, default=1.0) <= 0:
            raise ValueError(f"a device takes time, scale and factors are above zero: {self}")

    def seconds(self, tokens: Sequence[int], prefixes: Sequence[int], *, stage: int) -> float:
        """How long a stage computes a wave.

        Args:
            tokens: by request, how many are computed.
            prefixes: by request, how many precede them.
        """
        pairs = sum(count * (before + count / 2) for count, before in zip(tokens, prefixes, strict=True))
        model = self.per_wave + self.per_token * sum(tokens) + self.per_pair * pairs
        factor = self.factors[stage] if stage < len(self.factors) else 1.0
        return model * factor / self.scale

    def transfer(self, tokens: int) -> float:
        """How long the activations of that many tokens travel."""
        return self.transfer_per_token * tokens / self.scale

    def shortened(self, by: int) -> DeviceModel:
        """The model for prompts and waves that are that many times shorter: waves take as long as before."""
        return replace(
            self,
            per_token=self.per_token * by,
            per_pair=self.per_pair * by * by,
            transfer_per_token=self.transfer_per_token * by,
        )

    def at_scale(self, scale: float) -> DeviceModel:
        """The same device at another speed."""
        return replace(self, scale=scale)

    def to_json(self) -> str:
        """For `VARIABLE`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DeviceModel:
        """The inverse of `to_json`.

        Raises:
            ValueError: it is none.
        """
        try:
            values = json.loads(text)
            return cls(**{**values, "factors": tuple(values.get("factors", ()))})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no device model: {text}: {error}") from error


PRESETS = {
    "even": DeviceModel(),
    "light": DeviceModel(per_wave=2e-3),
    "uneven": DeviceModel(factors=(1.0, 1.15)),
    "slow-first": DeviceModel(factors=(1.25,)),
    "transfer": DeviceModel(transfer_per_token=1e-6),
    "launch-holds": DeviceModel(launch=5e-3, launch_holds_lock=True),
    "launch-frees": DeviceModel(launch=5e-3),
}
"""At full length. ``even`` is what the published figures use; the others change one thing each."""
