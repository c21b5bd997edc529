"""The one error that everything about settings raises."""

from __future__ import annotations


class SettingsError(ValueError):
    """A setting is wrong or cannot be combined with another one.

    The text is one line that a user can act on. On the command line it is printed as ``error: <text>`` and
    the process ends with status 2; a Python caller (``Engine(...)``) gets the exception.
    """

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))
