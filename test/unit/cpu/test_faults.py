from __future__ import annotations

import pytest

from sglang_wavepp import faults


def test_nothing_is_injected_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.FAULT_VARIABLE, raising=False)
    assert not faults.is_injected(faults.ZERO_SNAPSHOT)


def test_a_fault_is_injected_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.FAULT_VARIABLE, " zero_snapshot ,")
    assert faults.is_injected(faults.ZERO_SNAPSHOT)


def test_an_unknown_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.FAULT_VARIABLE, "zero_snapshots")
    with pytest.raises(faults.UnknownFaultError, match="zero_snapshots"):
        faults.requested_faults()
