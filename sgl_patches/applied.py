"""Hooks of this process: hand them to SGLang's registry, apply them, and see whether they are in place.

SGLang's registry logs a hook that fails to apply and goes on. That would leave a server that runs, but not as
asked, so whoever applies hooks here asks afterwards which ones are missing.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

_hooks: dict[str, Any] = {}


def add(target: str, hook: Callable[..., Any], kind: str) -> None:
    """Register a hook ("before", "after", "around" or "replace") unless this target has it already."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    if target in _hooks:
        return
    HookRegistry.register(target, hook, HookType(kind), source=HookSource("wavepp", "sglang-wavepp"))
    _hooks[target] = hook


def expect(target: str, hook: Any) -> None:
    """Count a hook that somebody else registered among those that must be in place."""
    _hooks[target] = hook


def apply() -> None:
    """Apply what is registered and not applied yet. Imports the modules of the targets."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.apply_hooks()


def targets() -> tuple[str, ...]:
    """Targets of all hooks that this process asked for."""
    return tuple(_hooks)


def missing() -> list[str]:
    """Targets whose hook is not in place."""
    return [target for target, hook in _hooks.items() if not is_in_place(target, hook)]


def is_in_place(target: str, hook: Any) -> bool:
    """Whether calling `target` reaches `hook`, directly or through wrappers."""
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError):
        return False
    if isinstance(hook, type):
        return isinstance(found, type) and issubclass(found, hook)
    return any(hook is part for part in _layers(found))


def _layers(found: Any) -> Iterator[Any]:
    """The callable itself, what each of its wrappers closes over, and what it wraps."""
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        function = getattr(found, "__func__", found)
        if isinstance(function, FunctionType):
            yield function
            for cell in function.__closure__ or ():
                yield cell.cell_contents
        found = getattr(function, "__wrapped__", None)
