"""Where the tiny models live, and making them when they are missing."""

from __future__ import annotations

import os
from pathlib import Path

from sglang_wavepp.cpu.models.configurations import ModelKind
from sglang_wavepp.cpu.models.directory import RECIPE, make_model


def cache_folder() -> Path:
    """The folder for what is made once: ``SGLANG_WAVEPP_CACHE``, else ``~/.cache/sglang-wavepp``."""
    return Path(os.environ.get("SGLANG_WAVEPP_CACHE") or Path.home() / ".cache" / "sglang-wavepp")


def model_folder(kind: ModelKind) -> Path:
    """The tiny model of this kind (seed 0), made on first use.

    Raises:
        ModelDirectoryError: the cache folder can't be written or holds something else there.
    """
    folder = cache_folder() / "models" / f"{kind.value}-{RECIPE}"
    make_model(folder, kind, seed=0)
    return folder
