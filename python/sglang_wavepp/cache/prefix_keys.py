"""Keys of the prefix tree whose tokens are compared before anybody takes the tree's mutex.

Most of the time of a walk goes into comparing the prompt with what is cached, and whether two runs of tokens are the
same doesn't depend on the tree. So a prompt is compared beforehand, without the mutex, and remembers what it found, key
by key. The walk under the mutex stays SGLang's and decides; it only needn't look at these tokens again. A key never
changes: a node that is split gets another one, of which nothing is known.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sglang.srt.mem_cache.radix_cache import RadixKey

STRETCH: Final = 8192
"""Tokens that are compared at a time. SGLang compares 1, 2, 4, ... of them, which takes twice as long where all are the
same. Where they aren't, SGLang still finds the place, and what comes before it is compared twice."""

Tokens: TypeAlias = "array[int]"


class NodeKey(RadixKey):
    """The key of a node."""

    __slots__ = ()

    @staticmethod
    def of(key: RadixKey) -> NodeKey:
        """The same key; the tokens are shared."""
        return NodeKey(key.token_ids, key.extra_key, key.is_bigram, key.limit, key.cache_salt)

    def match_at(self, other: RadixKey, offset: int, page_size: int = 1) -> int:
        """See `RadixKey.match_at`."""
        if isinstance(other, PromptKey):
            found = other.found(self, offset)
            if found is not None:
                return found // page_size * page_size
        if self._is_all_at(other, offset):
            return len(self) // page_size * page_size
        return int(super().match_at(other, offset, page_size))

    def _is_all_at(self, other: RadixKey, offset: int) -> bool:
        length = len(self)
        if self.is_bigram or other.is_bigram or not 0 <= offset <= len(other) - length:
            return False
        self._check_compatible(other)
        mine, theirs = self.token_ids, other.token_ids
        for start in range(0, length, STRETCH):
            stop = min(start + STRETCH, length)
            if mine[start:stop] != theirs[offset + start : offset + stop]:
                return False
        return True


@dataclass(frozen=True, slots=True)
class _Fact:
    """Of a key, `matched` tokens continue a prompt of which no more than `limit` tokens were looked at."""

    key: NodeKey
    matched: int
    limit: int


class PromptKey(RadixKey):
    """A prompt that is looked for, and how much of the keys that it was compared with continues it.

    Args:
        token_ids: the prompt, `array('q')`; not copied.
        limit: tokens of it that count.
        longer: a key of the same prompt. What one of them finds both know.
    """

    __slots__ = ("_child_keys", "_found")

    def __init__(
        self,
        token_ids: Tokens,
        *,
        extra_key: str | None,
        cache_salt: str | None,
        limit: int,
        longer: PromptKey | None = None,
    ) -> None:
        super().__init__(token_ids, extra_key=extra_key, limit=limit, cache_salt=cache_salt)
        self._found: dict[int, _Fact] = {} if longer is None else longer._found
        self._child_keys: dict[tuple[int, int], Any] = {} if longer is None else longer._child_keys

    def covers(self, tokens: Tokens, extra_key: str | None, cache_salt: str | None, limit: int) -> bool:
        """Whether this is a key of that prompt and reaches as far."""
        same = self.token_ids is tokens and self.extra_key == extra_key
        return same and self.cache_salt == (cache_salt or None) and len(self) >= min(limit, len(tokens))

    def upto(self, limit: int) -> PromptKey:
        """A shorter key of the same prompt."""
        return PromptKey(
            self.token_ids, extra_key=self.extra_key, cache_salt=self.cache_salt, limit=limit, longer=self
        )

    def compare(self, key: NodeKey, offset: int) -> bool:
        """Whether the whole key continues the prompt at this offset. Needs no mutex."""
        matched, known = key.match_at(self, offset), self._found.get(offset)
        if known is None or known.key is not key or known.limit < len(self):
            self._found[offset] = _Fact(key, matched, limit=len(self))
        return matched == len(key)

    def found(self, key: NodeKey, offset: int) -> int | None:
        """Tokens of a key that continue the prompt at this offset, None when it wasn't compared so far."""
        fact = self._found.get(offset)
        if fact is None or fact.key is not key or offset > len(self):
            return None
        # A comparison that the prompt's limit ended says nothing of what follows.
        cut = offset + fact.matched == fact.limit < len(self) and fact.matched < len(key)
        return None if cut else min(fact.matched, len(self) - offset)

    def page_aligned(self, page_size: int) -> RadixKey:
        """See `RadixKey.page_aligned`; copies no tokens."""
        if self.is_bigram:
            return super().page_aligned(page_size)
        return self.upto(len(self) // page_size * page_size)

    def child_key_at(self, offset: int, page_size: int = 1) -> Any:
        """See `RadixKey.child_key_at`."""
        if self.is_bigram:
            return super().child_key_at(offset, page_size)
        key = self._child_keys.get((offset, page_size))
        if key is None:
            key = self._child_keys[offset, page_size] = super().child_key_at(offset, page_size)
        return key
