"""The error that a control call raises in the API server when WavePP doesn't serve it."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import HTTPException


class ControlRefused(HTTPException, ValueError):
    """A control call that isn't served; over HTTP status 400 with the text, from ``Engine`` a ValueError."""

    def __init__(self, text: str) -> None:
        super().__init__(status_code=HTTPStatus.BAD_REQUEST, detail=text)

    def __str__(self) -> str:
        return str(self.detail)
