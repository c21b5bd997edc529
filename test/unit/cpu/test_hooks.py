"""Every place that the platform changes exists in the SGLang that is installed, and is changed."""

from __future__ import annotations

import pkgutil

import pytest

from sglang_wavepp.cpu import hooks

HOOKS = hooks.kernel_hooks()


@pytest.mark.parametrize("entry", HOOKS, ids=lambda entry: str(entry.target).removeprefix("sglang."))
def test_a_target_exists_and_says_why_it_is_changed(entry: hooks.KernelHook) -> None:
    assert callable(pkgutil.resolve_name(entry.target))
    assert entry.why


def test_no_target_is_listed_twice() -> None:
    assert len({entry.target for entry in HOOKS}) == len(HOOKS)


def test_nothing_is_installed_on_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("installed")

    monkeypatch.setattr(hooks, "install", refuse)
    monkeypatch.setattr(hooks, "current_platform", object())
    hooks.register()
