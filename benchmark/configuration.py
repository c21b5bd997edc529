"""One server configuration as a value: what is started, and the key under which a server is shared."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_wavepp.cpu.models.configurations import ModelKind


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server on the CPU reference platform. Sizes in tokens.

    Attributes:
        wave_tokens: the token budget of a wave where it is not ``chunk`` (WavePP only, which takes any number; stock
            SGLang wants a multiple of the page).
        radix: False turns the prefix cache off, so that every answer is computed from the first token on.
        recurrent_slots: recurrent states that a rank holds (hybrid models only).
        trace: record a WavePP timeline (WavePP only).
        options: further command-line options.
        environment: further environment variables, as pairs.
    """

    model: ModelKind = ModelKind.HYBRID
    pp: int = 2
    tp: int = 1
    wavepp: bool = False
    chunk: int = 256
    page: int = 64
    wave_tokens: int | None = None
    pool: int = 65_536
    running: int = 16
    recurrent_slots: int = 96
    radix: bool = True
    trace: bool = False
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if (self.trace or self.wave_tokens is not None) and not self.wavepp:
            raise ValueError("timeline and wave tokens belong to a WavePP server")

    @property
    def name(self) -> str:
        """A short file name, such as ``wavepp-hybrid-pp2-chunk256-page64``."""
        parts = ["wavepp" if self.wavepp else "stock", self.model.value, f"pp{self.pp}"]
        parts += [f"tp{self.tp}"] if self.tp > 1 else []
        parts += [f"chunk{self.wave_tokens or self.chunk}", f"page{self.page}"]
        parts += [] if self.radix else ["cold"]
        return "-".join(parts)

    @property
    def wave_budget(self) -> int:
        """Tokens that one wave may carry."""
        return self.wave_tokens or self.chunk

    def stock(self) -> ServerConfig:
        """The same server without WavePP."""
        options = self.options
        if any(word.startswith("--wavepp") for word in options):
            raise ValueError(f"{options} holds options that only WavePP knows")
        return replace(self, wavepp=False, trace=False, wave_tokens=None)

    def with_(self, **changes: Any) -> ServerConfig:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def command(self, *, model_path: Path, port: int, trace_folder: Path | None) -> list[str]:
        """The command line that starts this server."""
        words = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--device",
            "cpu",
            "--model-path",
            str(model_path),
        ]
        words += [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--pp-size",
            str(self.pp),
            "--tp-size",
            str(self.tp),
        ]
        words += ["--chunked-prefill-size", str(self.chunk), "--page-size", str(self.page)]
        words += ["--max-total-tokens", str(self.pool), "--max-running-requests", str(self.running)]
        words += ["--mem-fraction-static", "0.2", "--random-seed", "1", "--skip-server-warmup"]
        words += ["--constrained-json-disable-any-whitespace"]  # a random model would write blanks for ever
        if self.model is not ModelKind.DENSE:
            words += ["--max-mamba-cache-size", str(self.recurrent_slots)]
            words += ["--mamba-radix-cache-strategy", "extra_buffer"] if self.radix else []
        if not self.radix:
            words += ["--disable-radix-cache"]
        if self.wavepp:
            words += ["--wavepp"]
            words += [] if self.wave_tokens is None else ["--wavepp-max-wave-tokens", str(self.wave_tokens)]
        if trace_folder is not None:
            words += ["--wavepp-trace", str(trace_folder)]
        return words + list(self.options)


def reference(model: ModelKind, *, tp: int = 1) -> ServerConfig:
    """Stock SGLang on one stage, every answer computed from the first token on: what answers are compared with."""
    options = ("--sleep-on-idle", "--enable-custom-logit-processor")
    return ServerConfig(model=model, pp=1, tp=tp, radix=False, options=options)
