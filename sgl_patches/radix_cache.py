"""Registration with ``sglang.srt.mem_cache.registry``: the prefix cache that two threads may use."""

from __future__ import annotations

from sgl_patches.patch import Kind, NeededBy, Patch
from sglang_wavepp.settings.errors import SettingsError

BACKEND = "wavepp"

PATCHES = (
    Patch(
        target="sglang.srt.mem_cache.registry.register_radix_cache_backend",
        kind=Kind.REGISTER,
        why="names the guarded cache, so that --wavepp can choose it as the radix cache backend",
        breaks_without="the admission thread and the executor loop change SGLang's tree at the same time",
        fingerprint="6fda568b8a55bd8b",
        needed_by=NeededBy.WAVEPP,
    ),
    Patch(
        target="sglang.srt.mem_cache.registry.create_unified_radix_cache",
        kind=Kind.CALLED,
        why="builds the guarded cache with the components that SGLang would choose",
        breaks_without="the guarded cache is built with other components than SGLang's",
        fingerprint="c4f0d3cb7708f7aa",
        needed_by=NeededBy.WAVEPP,
    ),
)


def install() -> None:
    """Register the backend in this process, once."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    from sglang_wavepp.cache.guarded_cache import make_guarded_cache

    known = get_radix_cache_factory(BACKEND)
    if known is None:
        register_radix_cache_backend(BACKEND, make_guarded_cache)
    elif known is not make_guarded_cache:
        raise SettingsError(
            f"another plugin has registered a radix cache backend named {BACKEND!r}; remove it"
        )


def is_registered() -> bool:
    """Whether the backend of that name is ours."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory

    from sglang_wavepp.cache.guarded_cache import make_guarded_cache

    return get_radix_cache_factory(BACKEND) is make_guarded_cache
