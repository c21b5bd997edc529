"""When the paced device is there, and that all it hooks exists."""

from __future__ import annotations

import configparser
import pkgutil
from pathlib import Path

import pytest

from benchmark.paced import plugin, timers
from benchmark.paced.device_model import VARIABLE, DeviceModel
from benchmark.servers import CHECKOUT


def test_without_a_model_in_the_environment_there_is_no_device() -> None:
    assert plugin.asked_model({}, on_cpu=True) is None
    assert plugin.asked_model({VARIABLE: ""}, on_cpu=False) is None


def test_the_model_of_the_environment() -> None:
    model = DeviceModel(scale=0.25)
    assert plugin.asked_model({VARIABLE: model.to_json()}, on_cpu=True) == model


@pytest.mark.parametrize(("text", "on_cpu"), [("{}", False), ("nonsense", True)])
def test_a_device_that_cannot_be_ends_the_process(
    text: str, on_cpu: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # SystemExit passes SGLang's plug-in loader, which swallows every Exception.
    with pytest.raises(SystemExit):
        plugin.asked_model({VARIABLE: text}, on_cpu=on_cpu)
    assert VARIABLE in capsys.readouterr().err


def test_the_entry_point_names_the_plugin_and_no_platform() -> None:
    (path,) = plugin.SITE.glob("*.dist-info/entry_points.txt")
    points = configparser.ConfigParser()
    points.read(path)
    assert points.sections() == ["sglang.srt.plugins"]
    (target,) = points["sglang.srt.plugins"].values()
    assert pkgutil.resolve_name(target) is plugin.register


def test_the_wheel_has_neither_the_device_nor_its_entry_point() -> None:
    project = (CHECKOUT / "pyproject.toml").read_text()
    (included,) = (line for line in project.splitlines() if line.startswith("include = "))
    assert "benchmark" not in included
    assert "paced" not in project


@pytest.mark.parametrize("target", list(timers.TARGETS.values()))
def test_what_is_timed_exists(target: str) -> None:
    assert callable(pkgutil.resolve_name(target))


def test_what_the_device_replaces_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from benchmark.paced import streams
    from sglang_wavepp.cpu import hooks

    registered: list[str] = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, *_: registered.append(target))
    monkeypatch.setattr(streams, "install", lambda: None)
    monkeypatch.setattr(hooks, "is_active", lambda: True)
    monkeypatch.setenv(VARIABLE, DeviceModel().to_json())
    plugin.register()
    assert len(set(registered) - set(timers.TARGETS.values())) >= 8
    for target in registered:
        assert callable(pkgutil.resolve_name(target)), target
