"""The requests that this rank's executor knows, from their installation to their end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sglang_wavepp.executor.keys import key_of


@dataclass(slots=True)
class Entry:
    """One request on one rank.

    Attributes:
        req: SGLang's `Req`.
        prompt: tokens of the prompt.
        materialised: the request holds its own references to the prefix, so its lease has ended.
    """

    req: Any
    prompt: int
    materialised: bool = False

    @property
    def key(self) -> str:
        """The request's key."""
        return key_of(self.req)


@dataclass(slots=True)
class Entries:
    """Requests by key.

    Raises:
        KeyError: a command names a request that this rank doesn't know.
    """

    _by_key: dict[str, Entry] = field(default_factory=dict)

    def add(self, req: Any) -> Entry:
        """A request that was installed."""
        key = key_of(req)
        if key in self._by_key:
            raise ValueError(f"request {key} is installed already")
        entry = Entry(req=req, prompt=len(req.origin_input_ids))
        self._by_key[key] = entry
        return entry

    def get(self, key: str) -> Entry:
        """The entry of a request that a command names."""
        try:
            return self._by_key[key]
        except KeyError:
            raise KeyError(f"request {key} isn't installed on this rank") from None

    def remove(self, key: str) -> None:
        """Forget a request that ended."""
        self._by_key.pop(key, None)

    def any_materialised(self) -> bool:
        """Whether a request has taken room of its own in this rank's pools."""
        return any(entry.materialised for entry in self._by_key.values())

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def __len__(self) -> int:
        return len(self._by_key)
