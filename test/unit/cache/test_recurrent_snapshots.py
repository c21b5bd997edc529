"""SGLang's own preparation, tree and recurrent component in one process, without a model.

The recurrent state of a slot is one number: how many tokens it has consumed. A snapshot that the tree returns at
depth d must have consumed d tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import sglang.srt.layers.attention.hybrid_linear_attn_backend as hybrid_backend
import sglang.srt.mem_cache.rust_tree_core.adapter as tree_adapter
import torch
from sglang.srt.configs.mamba_utils import KimiLinearCacheParams, KimiLinearStateShape
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components import mamba
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_wavepp.admission.block_hash import block_hashes
from sglang_wavepp.cache import snapshot_guard
from sglang_wavepp.cache.publishing import publish, track
from sglang_wavepp.plane.messages import Span
from sglang_wavepp.planning.publisher import Publisher
from sglang_wavepp.planning.snapshots import PublishRule
from sglang_wavepp.planning.spans import PlannedSpan

STATE_CHUNK = 64
PROMPT = list(range(1, 2049))

Prepare = Callable[[Any, Any], Any]


def stock(batch: Any, req: Any) -> Any:
    return ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)


def guarded(batch: Any, req: Any) -> Any:
    return snapshot_guard.drop_off_page_snapshot(stock, batch, req)


@dataclass(frozen=True)
class Reuse:
    """What the next request with the same prompt finds.

    Attributes:
        depth: tokens of the prefix hit.
        consumed: tokens that the restored state has seen; None without a state.
    """

    depth: int
    consumed: float | None

    @property
    def right(self) -> bool:
        return self.consumed is None or self.consumed == self.depth


class World:
    """One rank's pools and tree."""

    def __init__(self, page: int) -> None:
        shape = KimiLinearStateShape.create(
            tp_world_size=1, num_heads=1, head_dim=4, num_k_heads=1, head_k_dim=4, conv_kernel_size=4
        )
        self.page = page
        self.rows = HybridReqToTokenPool(
            size=4,
            mamba_size=40,
            mamba_spec_state_size=4,
            max_context_len=4096,
            device="cpu",
            enable_memory_saver=False,
            cache_params=KimiLinearCacheParams(shape=shape, layers=[0]),
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=True,
            enable_overlap_schedule=False,
        )
        if page > 1:
            self.tokens = PagedTokenToKVPoolAllocator(8192, page, torch.bfloat16, "cpu", None, False)
        else:
            self.tokens = TokenToKVPoolAllocator(8192, torch.bfloat16, "cpu", None, False)
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.tokens,
                page_size=page,
                tree_components=(ComponentType.FULL, ComponentType.MAMBA),
                enable_mamba_extra_buffer=True,
            )
        )

    @property
    def states(self) -> torch.Tensor:
        return self.rows.mamba_pool.mamba_cache.temporal[0]

    def consumed(self, slots: torch.Tensor) -> float:
        return float(self.states[slots].flatten()[0])

    @property
    def snapshots(self) -> int:
        """Recurrent slots that the tree keeps."""
        return int(self.tree.mamba_evictable_size() + self.tree.mamba_protected_size())

    def serve(
        self, prompt: list[int], ends: list[int], prepare: Prepare, publisher: Publisher | None = None
    ) -> int:
        """Prefill `prompt` in spans that end at `ends`, from the prefix hit on, and end the request.

        Without a publisher it is checkpointed after each span, as SGLang does it. Returns the prefix hit.
        """
        req = Req(
            rid="r",
            origin_input_text="",
            origin_input_ids=array("q", prompt),
            sampling_params=SamplingParams(max_new_tokens=1),
        )
        req.init_next_round_input(self.tree)
        req.lock = self.tree.lock(req.last_node)
        hit = req.prefix_len
        batch = SimpleNamespace(
            req_to_token_pool=self.rows,
            tree_cache=self.tree,
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
        )
        self.rows.alloc([req])
        consumed = 0.0
        if hit:
            held = self.tree.path_device_indices(req.last_node)[:hit]
            self.rows.write((req.kv.req_pool_idx, slice(0, hit)), held.to(torch.int32))
            consumed = self.consumed(req.kv.mamba_cow_src_index)
        if publisher is not None:
            publisher.admit("r", prompt=len(prompt), endpoint=hit, reach=self.reach(prompt))
        for end in [end for end in ends if end > hit]:
            start = req.prefix_len
            if publisher is None:
                consumed = self._run_span(req, end, consumed, batch, prepare)
                checkpoint_kv_cache(req, self.tree)
                continue
            position = publisher.position(PlannedSpan("r", start, end - start))
            span = Span(rid="r", start=start, length=end - start, publish=position)
            track(req, span)
            consumed = self._run_span(req, end, consumed, batch, prepare)
            if end < len(prompt):
                publish(req, span, self.tree)
        if publisher is not None:
            req.finished_reason = FINISH_LENGTH(length=1)
            req.kv.kv_committed_len = req.kv.kv_allocated_len = len(prompt)
            release_kv_cache(req, self.tree, checkpoint=True)
        return hit

    def reach(self, prompt: list[int]) -> int:
        """Tokens of a prompt that the attention cache holds."""
        match = self.tree.match_prefix(
            MatchPrefixParams(key=RadixKey(array("q", prompt), limit=len(prompt) - 1))
        )
        return int(match.full_kv_hit_length)

    def _run_span(self, req: Any, end: int, consumed: float, batch: Any, prepare: Prepare) -> float:
        req.extend_end = end
        length = end - req.prefix_len
        # A span that starts inside a page needs slots of its own here: the page's rest is not tracked by this test.
        pages = -(-(length + req.prefix_len % self.page) // self.page)
        slots = self.tokens.alloc(pages * self.page)[:length]
        self.rows.write((req.kv.req_pool_idx, slice(req.prefix_len, end)), slots.to(torch.int32))
        entry = prepare(batch, req)
        if entry.track_mask:
            plan = hybrid_backend.build_prefill_track_plan(
                [True], [entry.track_seqlen], [length], [req.prefix_len], STATE_CHUNK, mamba2=False
            )
            chunk = next(iter(plan.chunk_indices))
            depth = length if chunk < 0 else STATE_CHUNK * chunk
            slot = int(req.kv.mamba_ping_pong_track_buffer[entry.track_position])
            self.states[slot] = consumed + depth
        return consumed + length

    def look_up(self, prompt: list[int]) -> Reuse:
        key = RadixKey(array("q", prompt), limit=len(prompt) - 1)
        match = self.tree.match_prefix(MatchPrefixParams(key=key))
        slots = self.tree.tree_core.get_component_device_value(match.best_match_node, ComponentType.MAMBA)
        return Reuse(match.device_prefix_len, None if slots is None else self.consumed(slots))


@contextmanager
def world(page: int) -> Iterator[World]:
    """A world in a process whose runtime context is the little that these code paths read."""
    chunk = max(STATE_CHUNK, page)
    execution = SimpleNamespace(
        mamba=SimpleNamespace(
            enable_mamba_extra_buffer=True,
            enable_mamba_extra_buffer_lazy=False,
            mamba_max_states_per_path=-1,
            mamba_track_interval=256,
        )
    )
    context = {
        "get_exec": lambda: execution,
        "get_serving": lambda: SimpleNamespace(strip_thinking_cache=False),
        "get_spec": lambda: SimpleNamespace(speculative_algorithm=None),
        "get_parallel": lambda: SimpleNamespace(dcp_enabled=False),
        "mamba_cache_chunk_size": lambda: chunk,
        "mamba_checkpoint_grid": lambda tree_page: math.lcm(chunk, tree_page),
    }
    with ExitStack() as stack:
        for module in (schedule_batch, mamba, tree_adapter, common):
            for name, value in context.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, value))
        yield World(page)


def reuse_after(page: int, passes: list[list[int]], prepare: Prepare) -> Reuse:
    """Serve one prompt once per pass, each time in spans that end where the pass says."""
    prompt = PROMPT[: max(ends[-1] for ends in passes)]
    with world(page) as place:
        for ends in passes:
            place.serve(prompt, ends, prepare)
        return place.look_up(prompt)


#: Spans that end on the grid of 64, except for the last of a request.
ON_THE_GRID = [
    [[1920, 2048]],
    [[1920, 2048], [1984, 2048]],
    [[192, 320, 384, 1000]],
    [[64, 128, 150]],
]

#: A pass that hits 1,920 and then ends a span of 18 tokens inside a page; cold odd cuts; SGLang's own mixed chunks.
OFF_THE_GRID = [
    [[1920, 2048], [1938, 2048]],
    [[100, 300, 2048]],
    [[192, 447, 702, 957, 1000]],
]


@pytest.mark.parametrize("passes", ON_THE_GRID)
@pytest.mark.parametrize("page", [64, 16, 1])
@pytest.mark.parametrize("prepare", [stock, guarded])
def test_spans_that_end_on_the_grid_are_filed_right(
    page: int, passes: list[list[int]], prepare: Prepare
) -> None:
    before = snapshot_guard.DROPS.dropped
    found = reuse_after(page, passes, prepare)
    assert found.right
    assert found.consumed is not None
    assert found.depth >= passes[-1][-1] - 2 * STATE_CHUNK
    assert snapshot_guard.DROPS.dropped == before


@pytest.mark.parametrize("passes", OFF_THE_GRID)
@pytest.mark.parametrize("page", [64, 16])
def test_spans_that_end_off_the_grid_are_filed_wrong_by_sglang(page: int, passes: list[list[int]]) -> None:
    """What the guard is for. When this fails, SGLang has mended it and the guard can go."""
    assert not reuse_after(page, passes, stock).right


@pytest.mark.parametrize("passes", OFF_THE_GRID)
@pytest.mark.parametrize("page", [64, 16])
def test_the_guard_leaves_only_right_states_and_counts_what_it_dropped(
    page: int, passes: list[list[int]]
) -> None:
    before = snapshot_guard.DROPS.dropped
    assert reuse_after(page, passes, guarded).right
    assert snapshot_guard.DROPS.dropped > before


@pytest.mark.parametrize("passes", [*ON_THE_GRID, *OFF_THE_GRID])
def test_with_pages_of_one_token_every_depth_has_a_name(passes: list[list[int]]) -> None:
    before = snapshot_guard.DROPS.dropped
    assert reuse_after(1, passes, guarded).right
    assert snapshot_guard.DROPS.dropped == before


# --- what spans publish -----------------------------------------------------------------------------------------


def sparse(period: int) -> Publisher:
    return Publisher(PublishRule.sparse(grid=64, period=period, inside=True), block=64)


def spans_of(length: int, prompt: int) -> list[int]:
    return [*range(length, prompt, length), prompt]


@pytest.mark.parametrize("page", [64, 16])
@pytest.mark.parametrize("prompt", [1000, 1024, 1030, 1090])
@pytest.mark.parametrize("length", [64, 128, 320])
def test_small_spans_keep_no_more_snapshots_than_spans_of_the_period(
    page: int, prompt: int, length: int
) -> None:
    kept = {}
    for spans in (length, 256):
        with world(page) as place:
            place.serve(PROMPT[:prompt], spans_of(spans, prompt), guarded, sparse(256))
            kept[spans] = place.snapshots
            found = [place.look_up(PROMPT[: end + 1]) for end in range(0, prompt, 16)]
            assert all(each.right for each in found)
            depths = {each.depth for each in found} - {0}
            wanted = {256, 512, 768, 1024, prompt // 64 * 64} & set(range(prompt))
            assert depths == wanted or (256 % spans and depths < wanted)
    assert kept[length] <= kept[256] == prompt // 256 + (prompt // 64 % 4 > 0)


@pytest.mark.parametrize("length", [64, 320, 1024])
def test_where_two_prompts_part_the_third_resumes(length: int) -> None:
    own = iter(range(5000, 9000))

    def prompt() -> list[int]:
        return PROMPT[:448] + [next(own) for _ in range(300)]

    with world(64) as place:
        hits = [place.serve(prompt(), spans_of(length, 748), guarded, sparse(1024)) for _ in range(4)]
        assert hits == [0, 0, 448, 448]
        assert place.look_up([*PROMPT[:448], 0]).right


def test_prompts_that_arrive_together_are_snapshot_where_they_part() -> None:
    left, right = PROMPT[:448] + [5000] * 300, PROMPT[:448] + [6000] * 300
    book = sparse(1024)
    book.announce("r", block_hashes(array("q", left), block=64, seed=0))
    book.announce("later", block_hashes(array("q", right), block=64, seed=0))
    with world(64) as place:
        assert place.serve(left, [748], guarded, book) == 0
        assert place.serve(right, [748], guarded, sparse(1024)) == 448


def test_what_is_not_published_stays_the_requests_own_and_goes_with_it() -> None:
    with world(64) as place:
        free = place.tokens.available_size()
        place.serve(PROMPT[:1000], spans_of(64, 1000), guarded, sparse(4096))
        assert place.snapshots == 1, "the end of the prompt"
        assert place.tokens.available_size() == free - 960
        assert place.look_up(PROMPT[:1001]) == Reuse(960, 960.0)
        place.tree.evict(EvictParams(num_tokens=8192, mamba_num=40))
        assert place.tokens.available_size() == free
        assert place.rows.mamba_allocator.available_size() == 40
        assert place.rows.available_size() == 4


def test_a_boundary_that_was_not_published_is_never_resumed_from() -> None:
    """The same spans, filed at their ends although the state was taken inside them: the check must see it."""

    def file_at_the_end(req: Any, span: Span, tree: Any) -> None:
        req.kv.mamba_last_track_seqlen = req.extend_end
        checkpoint_kv_cache(req, tree)

    def all_right() -> bool:
        with world(64) as place:
            place.serve(PROMPT[:1000], spans_of(320, 1000), guarded, sparse(256))
            return all(place.look_up(PROMPT[: end + 1]).right for end in range(0, 1000, 16))

    assert all_right()
    with mock.patch(f"{__name__}.publish", file_at_the_end):
        assert not all_right()
