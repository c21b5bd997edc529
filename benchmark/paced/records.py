"""What was measured: one record per cell, arm and repeat, in a JSON file that a later run continues."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmark.paced.cells import PHASES
from benchmark.paced.device_model import DeviceModel


class RecordsError(ValueError):
    """A file holds no records, or those of another version of this benchmark; the text names it."""


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One stage. ``host_ms``: CPU milliseconds a wave of the LOOP's thread; ``process_ms``: of the whole process."""

    waves: int
    tokens: float
    wave_ms: float
    idle: float
    late_s: float
    upstream_s: float
    host_ms: float
    process_ms: float
    run_queue_ms: float
    hot: dict[str, float] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        workload, concurrency: of the cell.
        arm: stock arms begin with ``stock``.
        tok_s: input tokens a second, cached ones included, from the first request to the last answer.
        p50_s, p95_s: seconds from arrival to first token.
        idle: of the device, averaged over the stages.
        plan_tok_s: the same waves through an ideal pipeline.
        bound_tok_s: what no schedule exceeds.
        good_hits: share of the requests that reused 80% of what they could, None where there was nothing to reuse.
        scale, shorten, pp, wave_tokens: speed of the device, divisor of lengths, stages, M.
        rejected, reason: whether the figures must not be used, and why.
        settings: digest of everything that makes figures comparable.
        load: of the machine before, over one minute.
        hosts: CPU seconds of all stages' hosts a second.
        stages: by stage.
        model: of the device, after shortening, at scale 1; None in old files.
        group: the arms that were up together and took turns, and since when; empty in old files.
    """

    workload: str
    concurrency: int
    arm: str
    repeat: int
    tok_s: float
    p50_s: float
    p95_s: float
    idle: float
    plan_tok_s: float | None
    bound_tok_s: float | None
    good_hits: float | None
    scale: float
    shorten: int
    pp: int
    wave_tokens: int
    rejected: bool
    reason: str | None
    settings: str
    load: float
    hosts: float
    requests: int
    stages: list[StageRecord]
    model: DeviceModel | None = None
    group: str = ""

    @property
    def cell(self) -> str:
        """Such as ``reuse131:4``; an open loop and ``phases`` have no concurrency of their own."""
        single = self.workload == PHASES or not self.concurrency
        return self.workload if single else f"{self.workload}:{self.concurrency}"

    @property
    def key(self) -> tuple[str, int, str, int, str]:
        """What a record is found by."""
        return (self.workload, self.concurrency, self.arm, self.repeat, self.settings)


class Records:
    """The records of a file, in the order in which they were measured; every `add` writes it.

    Raises:
        RecordsError: the file can't be read as records.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[tuple[str, int, str, int, str], Record] = {}
        if path.exists():
            try:
                kept = msgspec.json.decode(path.read_bytes(), type=list[Record])
            except msgspec.DecodeError as error:
                raise RecordsError(f"{path} holds no records of this version ({error})") from error
            self._kept.update((record.key, record) for record in kept)

    def find(self, workload: str, concurrency: int, arm: str, repeat: int, settings: str) -> Record | None:
        """A record that was kept, None when it has to be measured."""
        record = self._kept.get((workload, concurrency, arm, repeat, settings))
        return None if record is None or record.rejected else record

    def add(self, record: Record) -> None:
        """Keep a record as the last one; an older one of the same key is forgotten."""
        self._kept.pop(record.key, None)
        self._kept[record.key] = record
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(
            msgspec.json.format(msgspec.json.encode(list(self._kept.values())), indent=1) + b"\n"
        )
        draft.rename(self._path)

    def all(self) -> list[Record]:
        """All records, whatever their settings."""
        return list(self._kept.values())

    def of(self, settings: str) -> list[Record]:
        """All records of these settings."""
        return [record for record in self._kept.values() if record.settings == settings]


def by_cell_and_arm(records: Iterable[Record]) -> dict[tuple[str, int, str], list[Record]]:
    """All repeats of each workload, concurrency and arm, in the order of the records."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.workload, record.concurrency, record.arm), []).append(record)
    return groups


def usable(records: Iterable[Record]) -> list[Record]:
    """Those that weren't rejected."""
    return [record for record in records if not record.rejected]
