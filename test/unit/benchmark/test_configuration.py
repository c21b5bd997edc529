from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from benchmark.configuration import ServerConfig, reference
from benchmark.servers import PORTS_VARIABLE, ServerError, free_port, server_environment
from sglang_wavepp.cpu.models.configurations import ModelKind


def words(config: ServerConfig, trace: Path | None = None) -> str:
    return " ".join(config.command(model_path=Path("/m"), port=1, trace_folder=trace))


def test_a_stock_server_gets_no_option_of_wavepp() -> None:
    config = ServerConfig(wavepp=True, trace=True, chunk=128, wave_tokens=110, pp=4)
    assert "--wavepp --wavepp-max-wave-tokens 110 --wavepp-trace /t" in words(config, Path("/t"))
    assert "--chunked-prefill-size 128" in words(config) and "--pp-size 4" in words(config)
    assert "--wavepp" not in words(config.stock())
    assert config.wave_budget == 110 and config.stock().wave_budget == 128
    with pytest.raises(ValueError, match="only WavePP knows"):
        config.with_(options=("--wavepp-admission", "inline")).stock()


def test_only_a_hybrid_model_gets_recurrent_options() -> None:
    assert "--max-mamba-cache-size 96" in words(ServerConfig(model=ModelKind.HYBRID_MOE))
    assert "mamba" not in words(ServerConfig(model=ModelKind.DENSE))


def test_the_reference_reuses_nothing() -> None:
    config = reference(ModelKind.HYBRID, tp=2)
    assert "--disable-radix-cache" in words(config) and "--pp-size 1 --tp-size 2" in words(config)
    assert "mamba-radix" not in words(config) and "--wavepp" not in words(config)


def test_timeline_and_wave_tokens_need_wavepp() -> None:
    for wrong in ({"trace": True}, {"wave_tokens": 64}):
        with pytest.raises(ValueError, match="WavePP server"):
            ServerConfig(**wrong)  # type: ignore[arg-type]


def test_names_tell_configurations_apart() -> None:
    base = ServerConfig()
    others = [
        base.with_(**{key: value})
        for key, value in (("pp", 4), ("tp", 2), ("chunk", 64), ("page", 1), ("radix", False))
    ]
    assert len({config.name for config in (base, *others)}) == 6


def test_settings_of_the_caller_do_not_reach_the_server() -> None:
    config = ServerConfig(environment=(("SGLANG_WAVEPP_FAULT", "zero_snapshot"),))
    environment = server_environment(config, {"SGLANG_WAVEPP": "1", "PATH": "/bin", "PYTHONPATH": "/x"})
    assert "SGLANG_WAVEPP" not in environment
    assert environment["SGLANG_WAVEPP_FAULT"] == "zero_snapshot" and environment["PATH"] == "/bin"
    assert environment["PYTHONPATH"].split(os.pathsep)[-1] == "/x"


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv(PORTS_VARIABLE, f"{port}-{port}")
        with pytest.raises(ServerError, match="no free port"):
            free_port()
    assert free_port() == port
