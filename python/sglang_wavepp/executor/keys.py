"""What a request is called between ranks.

A client may use a request id again as soon as its request has ended on rank 0, when other ranks haven't seen the end
yet. So the planes and the executors use a key that is never used twice, and only rank 0 knows the client's id.
"""

from __future__ import annotations

from typing import Any


def make_key(arrival: int, rid: str) -> str:
    """Key of the request that arrived as number `arrival` under the client's id `rid`."""
    return f"{arrival}:{rid}"


def give_key(req: Any, key: str) -> None:
    """Mark SGLang's `Req` with its key."""
    req.wavepp_key = key


def key_of(req: Any) -> str:
    """The key of SGLang's `Req`.

    Raises:
        AttributeError: the request never went through admission.
    """
    return str(req.wavepp_key)


def has_key(req: Any) -> bool:
    """Whether the request went through admission."""
    return hasattr(req, "wavepp_key")
