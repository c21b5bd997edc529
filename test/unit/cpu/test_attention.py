"""Rows-only attention against the definition, and independence of chunks and batches."""

from __future__ import annotations

import pytest
import torch

from sglang_wavepp.cpu.kernels import attention

CONTEXT = 90


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first: int, scale: float
) -> torch.Tensor:
    out = torch.empty(query.shape[0], query.shape[1], value.shape[-1]).double()
    share = query.shape[1] // key.shape[1]
    for row in range(query.shape[0]):
        for head in range(query.shape[1]):
            seen = slice(0, first + row + 1)
            scores = key[seen, head // share].double() @ query[row, head].double() * scale
            out[row, head] = scores.softmax(0) @ value[seen, head // share].double()
    return out


@pytest.mark.parametrize(("heads", "pairs"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize(("first", "rows"), [(0, 1), (0, 40), (50, 40), (CONTEXT - 1, 1)])
def test_rows_agree_with_the_definition(heads: int, pairs: int, first: int, rows: int) -> None:
    query, key, value = (
        normal(rows, heads, 16),
        normal(CONTEXT, pairs, 16, seed=1),
        normal(CONTEXT, pairs, 12, seed=2),
    )
    out = attention.attend_rows(query, key, value, first, scaling=0.3)
    assert torch.equal(out, definition(query, key, value, first, 0.3).bfloat16())


@pytest.mark.parametrize("block", [1, 3, 64])
def test_block_size_does_not_show(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = normal(70, 4, 16), normal(CONTEXT, 2, 16, seed=1), normal(CONTEXT, 2, 16, seed=2)
    expected = attention.attend_rows(query, key, value, 20)
    monkeypatch.setattr(attention, "_BLOCK_SCORES", 0)
    monkeypatch.setattr(attention, "_MIN_BLOCK_ROWS", block)
    assert torch.equal(attention.attend_rows(query, key, value, 20), expected)


class Pool:
    """Three requests whose tokens lie scattered over a cache of 400 slots."""

    lengths = (90, 5, 41)

    def __init__(self) -> None:
        order = torch.randperm(400, generator=torch.Generator().manual_seed(7))
        self.keys, self.values = normal(400, 2, 16, seed=1), normal(400, 2, 16, seed=2)
        self.req_to_token = torch.full((5, 128), 399, dtype=torch.int32)
        self.rows = torch.tensor([3, 0, 2])
        start = 0
        for row, length in zip(self.rows.tolist(), self.lengths, strict=True):
            self.req_to_token[row, :length] = order[start : start + length].int()
            start += length
        # What lies past the end of a request must not be read, or must not matter.
        unused = order[start:]
        self.keys[unused], self.values[unused] = float("inf"), float("inf")

    def cached(self, which: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = self.req_to_token[self.rows[which], :end].long()
        return self.keys[slots], self.values[slots]


def refuse(*args: object, **kwargs: object) -> torch.Tensor:
    raise AssertionError("went to SGLang's own method")


def test_packed_spans_are_what_they_are_alone() -> None:
    pool, prefixes, lengths = Pool(), [30, 0, 40], [60, 5, 1]
    query = normal(sum(lengths), 4, 16, seed=3)
    out = torch.empty_like(query)
    attention.extend_attention(
        refuse,
        None,
        query,
        out,
        pool.keys,
        pool.values,
        pool.req_to_token,
        pool.rows,
        torch.tensor(pool.lengths),
        torch.tensor(prefixes),
        torch.tensor(lengths),
        scaling=0.25,
        causal=True,
    )
    start = 0
    for which, (prefix, length) in enumerate(zip(prefixes, lengths, strict=True)):
        span = slice(start, start + length)
        key, value = pool.cached(which, prefix + length)
        assert torch.equal(out[span], definition(query[span], key, value, prefix, 0.25).bfloat16())
        start += length


def test_decode_is_what_the_last_row_of_a_span_is() -> None:
    pool, query = Pool(), normal(3, 4, 16, seed=3)
    out = torch.empty_like(query)
    attention.decode_attention(
        refuse,
        None,
        query,
        out,
        pool.keys,
        pool.values,
        pool.req_to_token,
        pool.rows,
        torch.tensor(pool.lengths),
        scaling=0.25,
    )
    for which, length in enumerate(pool.lengths):
        key, value = pool.cached(which, length)
        row = query[which : which + 1]
        assert torch.equal(out[which : which + 1], attention.attend_rows(row, key, value, length - 1, 0.25))


@pytest.mark.parametrize("special", [{"sliding_window_size": 8}, {"is_cross_attn": True}, {"causal": False}])
def test_other_attention_goes_to_sglang(special: dict[str, object]) -> None:
    def upstream(*args: object, **kwargs: object) -> torch.Tensor:
        return torch.tensor(42)

    lengths, query = torch.tensor([1]), normal(1, 4, 16)
    cache, table = normal(4, 4, 16), torch.zeros(1, 4, dtype=torch.int32)
    options = {"causal": True, **special}
    out = attention.extend_attention(
        upstream,
        None,
        query,
        query,
        cache,
        cache,
        table,
        torch.tensor([0]),
        lengths,
        lengths * 0,
        lengths,
        **options,
    )
    assert out.item() == 42


@pytest.mark.parametrize("lengths", [[5], [1, 2, 4, 8, 16], [100, 99, 3, 50], [7, 7, 7]])
def test_groups_hold_every_row_once_and_pad_at_most_twofold(lengths: list[int]) -> None:
    groups = list(attention._groups_of_similar_length(lengths))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        inside = [lengths[row] for row in group]
        assert max(inside) <= 2 * min(inside)
