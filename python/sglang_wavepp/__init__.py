"""WavePP for SGLang: pipeline-parallel prefill with admission off the executor loop."""

from __future__ import annotations

__version__ = "0.1.0"
