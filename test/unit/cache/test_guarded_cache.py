from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from sglang_wavepp.cache import guarded_cache
from sglang_wavepp.cache.guarded_cache import GUARDED, GuardedRadixCache, make_guarded_cache

pytestmark = pytest.mark.unit


def bare() -> GuardedRadixCache:
    cache = object.__new__(GuardedRadixCache)
    cache.mutex = threading.RLock()
    return cache


@pytest.mark.parametrize("name", GUARDED)
def test_every_guarded_method_exists_in_sglang_and_runs_under_the_mutex(name: str) -> None:
    assert callable(getattr(UnifiedRadixCache, name, None)), f"SGLang has no {name} any more"
    cache = bare()
    seen: list[Any] = []

    def theirs(self: Any, *args: Any, **kwargs: Any) -> str:
        assert cache.mutex._is_owned(), f"{name} ran without the mutex"  # type: ignore[attr-defined]
        seen.append((self, args, kwargs))
        return "result"

    # Patched on the class after GuardedRadixCache was made, as a hook would do it.
    with mock.patch.object(UnifiedRadixCache, name, theirs):
        assert getattr(cache, name)(1, two=3) == "result"
    assert seen == [(cache, (1,), {"two": 3})]
    assert not cache.mutex._is_owned()  # type: ignore[attr-defined]


def test_an_error_gives_the_mutex_back() -> None:
    cache = bare()
    with mock.patch.object(UnifiedRadixCache, "evict", side_effect=KeyError("x")), pytest.raises(KeyError):
        cache.evict(None)
    assert not cache.mutex._is_owned()  # type: ignore[attr-defined]


def test_every_public_method_of_the_cache_that_changes_the_tree_is_guarded() -> None:
    reads = {name for name in vars(UnifiedRadixCache) if name.endswith(("_size", "_str"))}
    known = set(GUARDED) | reads | UNGUARDED
    public = {n for n, v in vars(UnifiedRadixCache).items() if not n.startswith("_") and callable(v)}
    assert public - known == set(), "new methods of SGLang: guard them, or say here why not"


# Construction and configuration; the host, storage and session tiers, which WavePP refuses; single reads.
UNGUARDED = {
    "all_mamba_values_flatten",
    "all_values_flatten",
    "attach_storage_backend",
    "backup_kv_cache",
    "backup_node_for_write_back",
    "bind_prefetch_ticket",
    "buffer_backup_pending",
    "check_hicache_events",
    "check_prefetch_progress",
    "checkpoint_into_tree",
    "clear_storage_backend",
    "detach_storage_backend",
    "discard_kv_cache_backup",
    "discard_storage_prefetch_accounting",
    "drain_storage_control_queues",
    "drain_storage_control_queues_local",
    "ensure_session_generation",
    "finish_external_linker_loads",
    "finish_storage_prefetch_admission",
    "flush_pending_backups",
    "get_last_hash_value",
    "get_prefix_hash_values",
    "has_free_load_back_slot",
    "has_ongoing_prefetch",
    "init_cache_linker",
    "init_hicache",
    "is_backuped",
    "is_load_back_event_done",
    "is_root",
    "load_back_is_cache_owned",
    "maybe_hand_to_session",
    "open_radix_session",
    "pop_prefetch_loaded_span",
    "pop_prefetch_loaded_tokens",
    "prefetch_from_storage",
    "prefetch_outcome_stats_snapshot",
    "pretty_print",
    "query_storage_hit_length",
    "ready_to_load_host_cache",
    "register_sidecar_pool",
    "release_host_resources",
    "release_radix_session",
    "release_session",
    "request_buffer_backup",
    "resolve_node_handle",
    "restore_kv_cache",
    "revoke_pending_prefetch",
    "root_node_handle",
    "rotation_base_of",
    "session_records",
    "shutdown",
    "supports_fast_match_prefix",
    "supports_mamba",
    "supports_prefix_sharing",
    "supports_retraction_backup",
    "supports_swa",
    "swa_reprefill_tail_tokens",
    "swa_retain_floor",
    "take_events",
    "total_size",
    "validate_retraction_host_capacity",
    "waiting_storage_span",
    "write_backup_storage",
}


def context(**changes: Any) -> Any:
    given = {"is_hybrid_swa": False, "enable_hierarchical_cache": False, "server_args": SimpleNamespace()}
    return SimpleNamespace(**{**given, **changes})


@pytest.mark.parametrize(
    ("change", "says"),
    [({"is_hybrid_swa": True}, "sliding window"), ({"enable_hierarchical_cache": True}, "host tier")],
)
def test_what_wavepp_cannot_admit_on_is_refused_by_name(change: dict[str, bool], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_guarded_cache(context(**change))


def test_the_factory_asks_sglang_for_its_own_class() -> None:
    made = bare()
    with mock.patch.object(guarded_cache, "create_unified_radix_cache", return_value=made) as create:
        assert make_guarded_cache(context()) is made
    assert create.call_args.kwargs == {"cache_class": GuardedRadixCache}
    with (
        mock.patch.object(guarded_cache, "create_unified_radix_cache", return_value=object()),
        pytest.raises(ValueError, match="unified radix cache"),
    ):
        make_guarded_cache(context())
