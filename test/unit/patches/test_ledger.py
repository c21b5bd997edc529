"""The ledger against the installed SGLang, and against what would go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sgl_patches import check, ledger
from sgl_patches.fingerprint import TargetMissingError, fingerprint_of, source_of
from sgl_patches.ledger import LEDGER, LedgerError
from sgl_patches.patch import NeededBy, Patch

EVERYBODY = NeededBy.ALWAYS | NeededBy.WAVEPP | NeededBy.CPU


def entry(target_part: str) -> Patch:
    (found,) = [patch for patch in LEDGER if patch.target.endswith(target_part)]
    return found


@pytest.mark.parametrize("patch", LEDGER, ids=lambda patch: patch.target)
def test_fingerprint_is_current(patch: Patch) -> None:
    assert fingerprint_of(patch.covered) == patch.fingerprint, f"{patch.covered} moved"


@pytest.mark.parametrize("patch", LEDGER, ids=lambda patch: patch.target)
def test_entry_says_why(patch: Patch) -> None:
    assert len(patch.why) > 20
    assert len(patch.breaks_without) > 20


def test_targets_are_listed_once() -> None:
    targets = [patch.target for patch in LEDGER]
    assert len(set(targets)) == len(targets)


def test_pinned_release_is_installed() -> None:
    assert ledger.installed_release() == ledger.PINNED_RELEASE
    ledger.verify(EVERYBODY)


def test_changed_target_is_named() -> None:
    moved = replace(entry("Scheduler.flush_cache"), fingerprint="0" * 16)
    with pytest.raises(LedgerError) as refusal:
        ledger.verify(NeededBy.WAVEPP, patches=[moved, entry("Scheduler.is_fully_idle")])
    line = str(refusal.value)
    assert "sglang.srt.managers.scheduler.Scheduler.flush_cache changed" in line
    assert "is_fully_idle" not in line
    assert "\n" not in line


def test_missing_target_is_named() -> None:
    gone = replace(entry("Scheduler.flush_cache"), target="sglang.srt.managers.scheduler.Scheduler.flush_all")
    with pytest.raises(LedgerError, match="Scheduler.flush_all missing"):
        ledger.verify(NeededBy.WAVEPP, patches=[gone])


def test_only_what_a_process_needs_is_verified() -> None:
    moved = replace(entry("Scheduler.flush_cache"), fingerprint="0" * 16)
    ledger.verify(NeededBy.ALWAYS | NeededBy.CPU, patches=[moved])


def test_ranks_with_other_sources_have_other_fingerprints() -> None:
    ours = ledger.fingerprints(NeededBy.WAVEPP)
    assert (
        ours["sglang.srt.managers.scheduler.Scheduler.flush_cache"]
        == entry("Scheduler.flush_cache").fingerprint
    )
    assert not any(target.startswith("sglang.kernels") for target in ours)


def test_table_fails_on_a_mismatch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main() == 0
    assert f"{len(LEDGER)} hooks, 0 moved or missing" in capsys.readouterr().out
    moved = replace(entry("Scheduler.flush_cache"), fingerprint="0" * 16)
    monkeypatch.setattr(check, "compare", lambda: ledger.compare([moved, entry("Scheduler.is_fully_idle")]))
    assert check.main() == 1
    out = capsys.readouterr().out
    assert "2 hooks, 1 moved or missing" in out
    assert "Scheduler.flush_cache changed: without this hook a cache is flushed" in out


def test_fingerprint_follows_code_and_not_comments(tmp_path: pytest.TempPathFactory, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    package = tmp_path / "some_package"  # type: ignore[operator]
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def of(body: str) -> str:
        name = f"m{abs(hash(body))}"
        (package / f"{name}.py").write_text(body)
        return fingerprint_of(f"some_package.{name}.A.f")

    plain = of("class A:\n    @staticmethod\n    def f(x):\n        return x\n")
    assert plain == of(
        "# moved down\n\nclass A:\n    @staticmethod\n    def f(x):\n        # why\n\n        return x   \n"
    )
    assert plain != of("class A:\n    @staticmethod\n    def f(x):\n        return x + 1\n")
    assert plain != of("class A:\n    @classmethod\n    def f(x):\n        return x\n")


def test_source_of_functions_classes_constants_and_modules() -> None:
    assert source_of("sglang.srt.plugins.load_plugins").startswith("def load_plugins():")
    assert source_of("sglang.srt.plugins.hook_registry.HookType").startswith("class HookType(Enum):")
    assert (
        source_of("sglang.srt.plugins.GENERAL_PLUGINS_GROUP")
        == 'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"'
    )
    assert "def load_plugins():" in source_of("sglang.srt.plugins")
    for name in ("sglang.srt.plugins.nothing", "sglang.nowhere.f", "no_such_package.f"):
        with pytest.raises(TargetMissingError, match=name):
            fingerprint_of(name)
