"""The executable model: its rules hold in random histories, and each rule that is left out breaks something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest
from model.campaign import ARMS, BATCH, Arm, Campaign
from model.oracle.config import FAMILIES
from model.oracle.mutants import MUTANTS, PATIENCE, SAFE, Variant, harm, history
from model.oracle.rules import Rules

pytestmark = pytest.mark.model

HISTORIES = {"mixed": 90, "growing": 80, "deep": 30, "warm": 20}


def test_the_rules_hold_in_random_histories_that_meet_everything() -> None:
    seen: Counter[str] = Counter()
    steps = 0
    for family, count in HISTORIES.items():
        for seed in range(count):
            rules = Rules(victims="concrete" if seed % 2 else "counted")
            simulation = history(rules, family, seed)
            found = harm(simulation)
            assert found is None, f"{family} {seed}, {rules}, {simulation.config}: {found}"
            seen += simulation.stat
            steps += simulation.steps
    assert steps >= 50_000
    for what in ("admitted", "wait", "trim", "finished", "aborted", "retracted", "refused"):
        assert seen[what] > 10, f"{what} was hardly ever met, so it was not tested: {seen}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_rule_is_needed(mutant: Variant) -> None:
    for seed in range(mutant.first, mutant.first + 150):
        if harm(history(mutant.rules, mutant.family, seed, patience=PATIENCE)) is not None:
            assert harm(history(Rules(), mutant.family, seed, patience=PATIENCE)) is None
            return
    pytest.fail("nobody was harmed")


@pytest.mark.parametrize("variant", SAFE, ids=lambda variant: variant.name)
def test_other_choices_do_no_harm(variant: Variant) -> None:
    for family in FAMILIES:
        for seed in range(8):
            assert harm(history(variant.rules, family, seed)) is None, f"{family} {seed}"


def test_a_history_is_a_function_of_its_seed() -> None:
    one, again = history(Rules(), "mixed", 7), history(Rules(), "mixed", 7)
    assert (one.run(), one.log) == (again.run(), again.log)


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Campaign("oracle", 5, tmp_path).run(1)
    kept = next(tmp_path.glob("*.jsonl"))
    kept.write_text(kept.read_text() + '{"number": 1, "hist')  # killed while it wrote
    again = Campaign("oracle", 5, tmp_path)
    assert again.steps == first["steps"] > 0
    second = again.run(first["steps"] + 1)
    assert second["histories"] == 2 * first["histories"] == 2 * BATCH
    assert second["outcome"] == "no harm" and second["seen"]["finished"] > first["seen"]["finished"]


def test_a_campaign_names_the_history_that_did_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = Rules(aborts="commands")
    arm = Arm(lambda seed: history(mutant, "mixed", seed), ())
    monkeypatch.setitem(ARMS, "mutant", arm)
    summary = Campaign("mutant", 0, tmp_path).run(100_000)
    assert summary["outcome"] == "history 1: rank 0: leak after the last end: [0]"
    assert Campaign("mutant", 0, tmp_path).run(100_000) == {**summary, "finished_at": ANY}


@pytest.mark.full
@pytest.mark.parametrize("arm", ["oracle", "product"])
def test_three_million_steps(arm: str, record_property: Callable[[str, object], None]) -> None:
    """Resumable; see `model.campaign`."""
    summary = Campaign(arm, 1).run(3_000_000, processes=2)
    record_property("figures", f"{summary['steps']:,} steps, {summary['histories']:,} histories")
    assert summary["outcome"] == "no harm"
