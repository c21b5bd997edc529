"""Chained hashes of a prompt's blocks: the names under which a rank looks for a cached prefix.

The hash of a block stands for everything up to its end, `H_i = hash(H_{i-1}, block_i)`, and the chain starts from a
seed that keeps namespaces apart as the prefix tree does. Only full blocks have a hash. A block is a fixed number of
tokens, whatever the page size of the cache is.

Hashes never leave a rank and are no proof: two prompts that collide give a hint that the walk of the tree corrects.
So they are fast: 64-bit XXH3 over the raw tokens, each block copied out by an iterator that runs in C, which takes
two thirds of the time of slicing a memory view. A chain of 200,000 tokens takes about a millisecond.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

TOKEN_BYTES = 8

Tokens: TypeAlias = "array[int] | memoryview"
"""Token ids as signed 64-bit integers: `array("q")`, or a memory view of one."""

Chain: TypeAlias = "array[int]"
"""Hashes of a prompt's blocks, `array("Q")`."""


def namespace_seed(*, extra_key: str | None, cache_salt: str | None, lora: str | None = None) -> int:
    """Where the chain of a request starts: equal exactly when the prefix tree lets two requests share.

    Args:
        extra_key: of the request; None and "" are different namespaces, as in the tree.
        cache_salt: of the request; None and "" are the same, as in the tree.
        lora: id of the adapter. SGLang appends it to the extra key before the tree sees it, so a seed from the
            tree's own key leaves it out.
    """
    if lora is not None:
        extra_key = (extra_key or "") + lora
    parts = (extra_key, cache_salt or None)
    encoded = (b"\0" if part is None else b"\1%b" % _with_length(part.encode()) for part in parts)
    return xxh3_64_intdigest(b"".join(encoded))


def block_hashes(tokens: Tokens, *, block: int, seed: int) -> Chain:
    """Hash of each full block, in order; tokens after the last full block have none.

    An array of unsigned 64-bit integers: a fifth of a list, and a search in it that finds nothing in the processor's
    cache takes a quarter less.

    Args:
        tokens: `[n]` token ids; not copied.
        block: tokens per block.
        seed: of the namespace.

    Raises:
        TypeError: the tokens aren't 64-bit integers.
        ValueError: `block` isn't positive.
    """
    return array("Q", ChainEnd.start(block=block, seed=seed).extend(tokens)[0])


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """Where a chain stands after some tokens: what is needed to go on from there, also inside a block.

    Attributes:
        block: tokens per block.
        blocks: full blocks so far.
        last: hash of the last of them, the seed when there is none.
        tail: raw tokens after the last full block, less than a block.
    """

    block: int
    blocks: int
    last: int
    tail: bytes

    @staticmethod
    def start(*, block: int, seed: int) -> ChainEnd:
        """The chain before its first token.

        Raises:
            ValueError: `block` isn't positive.
        """
        if block < 1:
            raise ValueError(f"a block has at least 1 token, not {block}")
        return ChainEnd(block, 0, seed, b"")

    @property
    def position(self) -> int:
        """Tokens so far."""
        return self.blocks * self.block + len(self.tail) // TOKEN_BYTES

    @property
    def on_grid(self) -> bool:
        """Whether a block ends here, so that `last` stands for all tokens so far."""
        return not self.tail

    def extend(self, tokens: Tokens, known: Sequence[int] = ()) -> tuple[list[int], ChainEnd]:
        """Hashes of the blocks whose last token is among these tokens, and where the chain stands then.

        Args:
            tokens: `[n]` token ids that follow.
            known: chain, from its first block, of the request that these tokens should belong to. Its hashes are
                taken instead of computed when they continue this chain and the last one taken agrees with its
                block. That tells a chain of other tokens, unless they differ only between these two places. What
                the chain doesn't reach is hashed.

        Raises:
            TypeError: the tokens aren't 64-bit integers.
        """
        raw = _raw(tokens)
        size = self.block * TOKEN_BYTES
        if len(self.tail) + len(raw) < size:
            return [], ChainEnd(self.block, self.blocks, self.last, self.tail + raw.tobytes())
        hashes = self._taken(raw, known)
        done = len(hashes) * size - len(self.tail) if hashes else 0
        if self.tail and not hashes:
            done = size - len(self.tail)
            hashes.append(xxh3_64_intdigest(self.tail + raw[:done].tobytes(), self.last))
        last = hashes[-1] if hashes else self.last
        whole = done + (len(raw) - done) // size * size
        append = hashes.append
        for (data,) in struct.iter_unpack(f"{size}s", raw[done:whole]):
            last = xxh3_64_intdigest(data, last)
            append(last)
        return hashes, ChainEnd(self.block, self.blocks + len(hashes), last, raw[whole:].tobytes())

    def split(self, hashes: list[int], upper: Tokens) -> tuple[list[int], list[int], ChainEnd]:
        """Divide what `extend` gave, without hashing again.

        Args:
            hashes: of the blocks that end in some tokens that start here.
            upper: `[n]` the first of these tokens.

        Returns:
            Hashes of the blocks that end in `upper`, of those that end after it, and where the chain stands between.

        Raises:
            TypeError: the tokens aren't 64-bit integers.
            ValueError: there are fewer hashes than blocks end in `upper`.
        """
        raw = _raw(upper)
        size = self.block * TOKEN_BYTES
        count, rest = divmod(len(self.tail) + len(raw), size)
        if count > len(hashes):
            raise ValueError(f"{count} blocks end in these tokens, but only {len(hashes)} hashes are given")
        tail = raw[len(raw) - rest :].tobytes() if count else self.tail + raw.tobytes()
        last = hashes[count - 1] if count else self.last
        return hashes[:count], hashes[count:], ChainEnd(self.block, self.blocks + count, last, tail)

    def _taken(self, raw: memoryview, known: Sequence[int]) -> list[int]:
        """The part of a known chain that these tokens reach, empty when it doesn't fit."""
        size = self.block * TOKEN_BYTES
        upto = min(self.blocks + (len(self.tail) + len(raw)) // size, len(known))
        if upto <= self.blocks or (self.blocks and known[self.blocks - 1] != self.last):
            return []
        end = (upto - self.blocks) * size - len(self.tail)
        block = raw[end - size : end].tobytes() if end >= size else self.tail + raw[:end].tobytes()
        before = known[upto - 2] if upto - 1 > self.blocks else self.last
        if xxh3_64_intdigest(block, before) != known[upto - 1]:
            return []
        return list(known[self.blocks : upto])


def _raw(tokens: Tokens) -> memoryview:
    view = memoryview(tokens)
    if view.itemsize != TOKEN_BYTES:
        raise TypeError(f"token ids must be 64-bit integers, these have {view.itemsize} bytes")
    return view.cast("B")


def _with_length(text: bytes) -> bytes:
    """Keeps joined parts apart."""
    return len(text).to_bytes(8, "little") + text
