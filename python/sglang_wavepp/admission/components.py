"""The kinds of cache that a prefix needs, each with its own rule of reuse."""

from __future__ import annotations

from enum import Enum


class Component(Enum):
    """One kind of cached state. A request resumes only where every component of the model can."""

    FULL = "full"
    """Attention over everything before a token: reusable at any length of an unbroken prefix."""
    SWA = "swa"
    """Attention over a sliding window: reusable where the last window is whole."""
    MAMBA = "mamba"
    """Recurrent state: reusable only at the positions of which a snapshot was kept."""
