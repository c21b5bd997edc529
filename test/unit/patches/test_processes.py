"""What the hooks do to whole processes: nothing without --wavepp, everything or a refusal with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgl_patches import engine, tokenizer, watchdog
from sgl_patches.ledger import LEDGER
from sgl_patches.patch import Kind, NeededBy
from sgl_patches.scheduler import SCHEDULER

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("process_arms.py")
FLAGS = {
    "sglang.srt.server_args.ServerArgs.add_cli_args",
    "sglang.srt.server_args.ServerArgs.from_cli_args",
    "sglang.srt.entrypoints.engine.Engine.server_args_class",
}
LAUNCHER = {
    "sglang.srt.server_args.ServerArgs.resolved_dict",
    "sglang.srt.server_args.ServerArgs.check_server_args",
    *(patch.target for patch in (*tokenizer.PATCHES, *watchdog.PATCHES)),
}
HOOKED = (Kind.BEFORE, Kind.AFTER, Kind.AROUND, Kind.SUBCLASS)
MAX_PREFIX = "sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len"


@pytest.fixture(scope="module")
def arms() -> dict[str, Any]:
    """Results of all arms. SGLang is imported once for all of them, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    inherited["SGLANG_PLUGINS"] = "wavepp"  # SGLang's own dependencies bring plugins that hook it, too
    finished = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=inherited,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def test_stock_differs_in_argument_parsing_only(arms: dict[str, Any]) -> None:
    assert set(arms["stock"]["changed"]) == FLAGS
    assert set(arms["stock"]["targets"]) == FLAGS
    assert arms["stock"]["missing"] == []


def test_the_ledger_names_what_parses_arguments() -> None:
    assert {p.target for p in LEDGER if p.needed_by is NeededBy.ALWAYS} == FLAGS


def test_another_release_is_left_alone(arms: dict[str, Any]) -> None:
    assert arms["stock_with_another_release"]["changed"] == []


def test_cpu_platform_changes_its_kernels_and_nothing_else(arms: dict[str, Any]) -> None:
    targets = {p.target for p in LEDGER if p.needed_by & NeededBy.CPU and p.kind is not Kind.REGISTER}
    names = {target.rsplit(".", 1)[1] for target in targets}
    changed = set(arms["cpu"]["changed"])
    # A replaced function is replaced in the modules that imported it by name, too.
    unexpected = {place for place in changed - FLAGS if place.rsplit(".", 1)[1] not in names}
    assert unexpected == set(), "changed and not in the ledger"
    hooked = set(arms["cpu"]["targets"]) - FLAGS
    start = {p.target for p in engine.PATCHES if p.needed_by & NeededBy.CPU}
    assert hooked | start == {t for t in targets if t.startswith("sglang.")}, (
        "the ledger and the hooks differ"
    )
    assert start <= changed
    assert arms["cpu"]["missing"] == []


def test_launcher_is_prepared(arms: dict[str, Any]) -> None:
    launcher = arms["launcher"]
    assert launcher["settings"]
    assert launcher["depth"] == 2, "a ring of 2 x pp-size slots"
    assert launcher["backend"] == ["wavepp", True]
    assert launcher["overlap"] == "1"
    assert launcher["crash_diagnostics"] == ["0", "1"], "off, unless the environment says otherwise"
    assert set(launcher["targets"]) >= LAUNCHER
    assert launcher["watched"] == ["scheduler_0 pp0 tp0", "scheduler_1 pp1 tp0", "detokenizer"]
    assert launcher["subclass"]
    assert launcher["missing"] == []
    assert launcher["server_info"]["wavepp"] is True
    assert launcher["server_info"]["wavepp_admission"] == "lease"


def test_agreed_endpoint_bounds_the_prefix(arms: dict[str, Any]) -> None:
    hooked, bounds = arms["launcher"]["prefix"]
    assert hooked
    assert bounds == [99, 64, 99], "without an endpoint, below the natural bound, above it"


def test_every_override_of_the_scheduler_is_in_the_ledger(arms: dict[str, Any]) -> None:
    overrides = [p.target.rpartition(".") for p in LEDGER if p.kind is Kind.OVERRIDE]
    listed = {method for owner, _, method in overrides if owner == SCHEDULER}
    overridden = {name for name in arms["launcher"]["overridden"] if not name.startswith("__")}
    assert overridden == listed


def test_spawned_scheduler_installs_everything_while_it_unpickles(arms: dict[str, Any]) -> None:
    child = arms["spawned_child"]
    assert child["trace"] == "t.json"
    assert child["missing"] == []
    # What the parent registers with SGLang's own registries is no target.
    hooks = {p.target for p in LEDGER if p.needed_by & NeededBy.WAVEPP and p.kind in HOOKED}
    assert hooks - LAUNCHER <= set(child["targets"])


def test_other_spawned_children_install_nothing(arms: dict[str, Any]) -> None:
    child = arms["spawned_child_without_a_scheduler"]
    assert child["trace"] == "t.json"
    assert not child["scheduler"]
    assert child["targets"] == []


def test_a_copy_in_the_launcher_installs_nothing(arms: dict[str, Any]) -> None:
    assert arms["copied_in_the_launcher"]["hooked"] is False


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("child_of_a_moved_release", f"{MAX_PREFIX} changed"),
        ("hook_was_lost", f"hook not in place: {MAX_PREFIX};"),
        ("scheduler_was_replaced_again", "hook not in place: sglang.srt.managers.scheduler.Scheduler;"),
        ("hook_does_not_apply", "hook not in place: sglang.srt.server_args.ServerArgs."),
        ("stock_server_after_a_wavepp_server", "start a server without --wavepp from a new process"),
        ("refused_after_resolution", "--wavepp cannot be combined with --disable-radix-cache: "),
    ],
)
def test_process_ends_with_one_line(arms: dict[str, Any], arm: str, said: str) -> None:
    assert arms[arm].get("exit") == 2, arms[arm]
    (line,) = [line for line in arms[arm]["stderr"].splitlines() if line.startswith("error: ")]
    assert said in line
    assert "Traceback" not in arms[arm]["stderr"]


def test_scheduler_without_hooks_refuses(arms: dict[str, Any]) -> None:
    assert "this process runs SGLang's own scheduler" in arms["scheduler_without_any_hook"]["error"]


def test_engine_takes_keywords(arms: dict[str, Any]) -> None:
    off, tokens, refusal = arms["engine_keywords"]
    assert off
    assert tokens == 96
    assert refusal == "--wavepp-planner must be one of mpu, supply, static, got 'best'"


def test_environment_reaches_arguments_built_before_plugins(arms: dict[str, Any]) -> None:
    assert arms["environment_only"] == [3, 2, "wavepp"]
