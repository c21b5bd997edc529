"""The ring of slots: which waves are between their launch and their result on this rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sglang_wavepp.executor.keys import key_of
from sglang_wavepp.executor.wave_clock import Stopwatch


@dataclass(slots=True)
class Flight:
    """One wave in flight on this rank.

    Attributes:
        wave: number of the wave.
        slot: index of its slot.
        batch: SGLang's `ScheduleBatch` that was launched.
        middle: requests of the batch whose prompt isn't finished by this wave.
        lane: decode lane, None for a prefill wave.
        keys: requests of the batch at the launch, in their order.
        stopwatch: of its forward on this rank's device, None where nobody asks.
    """

    wave: int
    slot: int
    batch: Any
    middle: frozenset[str] = frozenset()
    lane: int | None = None
    keys: tuple[str, ...] = ()
    stopwatch: Stopwatch | None = None

    def __post_init__(self) -> None:
        # A batch loses requests when its result is applied.
        self.keys = tuple(key_of(req) for req in self.batch.reqs)


@dataclass(slots=True)
class Ring:
    """`size` slots; a wave holds one from its launch to its result.

    Raises:
        RuntimeError: a slot is taken twice, or a result names a wave that isn't in flight. Both mean that this rank
            no longer follows rank 0.
    """

    size: int
    _flights: dict[int, Flight] = field(default_factory=dict)

    def take(self, flight: Flight) -> None:
        """Put a wave into its slot."""
        if not 0 <= flight.slot < self.size or any(f.slot == flight.slot for f in self._flights.values()):
            raise RuntimeError(f"slot {flight.slot} of {self.size} can't take wave {flight.wave}")
        self._flights[flight.wave] = flight

    def give_back(self, wave: int) -> Flight:
        """The flight of a wave whose result has come; frees its slot."""
        flight = self.flight(wave)
        del self._flights[wave]
        return flight

    def flight(self, wave: int) -> Flight:
        """The flight of a wave that is still in its slot."""
        if wave not in self._flights:
            raise RuntimeError(f"wave {wave} isn't in flight here")
        return self._flights[wave]

    def free_slot(self) -> int | None:
        """Lowest free slot, None when all are taken."""
        taken = {f.slot for f in self._flights.values()}
        return next((i for i in range(self.size) if i not in taken), None)

    def flights(self) -> list[Flight]:
        """Waves in flight, oldest first."""
        return list(self._flights.values())

    def __len__(self) -> int:
        return len(self._flights)
