"""All hooks in one table, and the check of the installed SGLang against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from sgl_patches import (
    cpu_kernels,
    engine,
    radix_cache,
    schedule_batch,
    scheduler,
    server_args,
    tokenizer,
    tree_core,
    watchdog,
)
from sgl_patches.fingerprint import TargetMissingError, fingerprint_of
from sgl_patches.patch import NeededBy, Patch

PINNED_RELEASE = "0.5.23"

LEDGER: tuple[Patch, ...] = (
    *server_args.PATCHES,
    *engine.PATCHES,
    *scheduler.PATCHES,
    *schedule_batch.PATCHES,
    *radix_cache.PATCHES,
    *tree_core.PATCHES,
    *tokenizer.PATCHES,
    *watchdog.PATCHES,
    *cpu_kernels.PATCHES,
)


class LedgerError(RuntimeError):
    """The installed SGLang is not the one that a hook was written against, or a hook is not in place."""


@dataclass(frozen=True)
class Finding:
    """One entry of the ledger against the installed release. ``found`` is None when the target is missing."""

    patch: Patch
    found: str | None

    @property
    def status(self) -> str:
        """``ok``, ``changed`` or ``missing``."""
        if self.found is None:
            return "missing"
        return "ok" if self.found == self.patch.fingerprint else "changed"


def compare(patches: Iterable[Patch] = LEDGER) -> list[Finding]:
    """Look up the source of every entry in the installed release."""
    return [Finding(patch, _installed(patch)) for patch in patches]


def verify(needed_by: NeededBy, *, patches: Iterable[Patch] = LEDGER) -> None:
    """Refuse an SGLang that differs from the one that the hooks were written against.

    Checks the entries that any of `needed_by` applies. Raises ``LedgerError`` with one line that names every
    target that moved or is missing.
    """
    wrong = [f for f in compare(p for p in patches if p.needed_by & needed_by) if f.status != "ok"]
    if wrong:
        names = ", ".join(f"{f.patch.covered} {f.status}" for f in wrong)
        raise LedgerError(
            f"SGLang {installed_release()} is not the {PINNED_RELEASE} that WavePP's hooks were written against: "
            f"{names}; install sglang=={PINNED_RELEASE}"
        )


def fingerprints(needed_by: NeededBy, *, patches: Iterable[Patch] = LEDGER) -> dict[str, str]:
    """Fingerprint of the installed source by target, of the entries that any of `needed_by` applies.

    Ranks compare them at start-up: equal on two ranks exactly when both hook the same sources.
    """
    return {
        f.patch.target: f.found or "missing" for f in compare(p for p in patches if p.needed_by & needed_by)
    }


def installed_release() -> str:
    """Version of the installed SGLang, or ``not installed``."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "not installed"


def _installed(patch: Patch) -> str | None:
    try:
        return fingerprint_of(patch.covered)
    except TargetMissingError:
        return None
