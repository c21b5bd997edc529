"""Travels with the arguments to every spawned child and installs the hooks there.

A child must not serve without its hooks. SGLang swallows whatever goes wrong while it loads plugins, so the request
does not depend on that: it is pickled with the arguments and acts while the child unpickles them, which is before
SGLang runs any code of the child. Whatever goes wrong there ends the child.
"""

from __future__ import annotations

import multiprocessing
import sys

from sgl_patches import launch
from sgl_patches.scheduler import MODULE as SCHEDULER_MODULE


class Arrival:
    """Attached to the arguments of a WavePP server. Unpickling it installs what the new process needs."""

    def __reduce__(self) -> tuple[object, ...]:
        return (arrive, ())

    def __deepcopy__(self, memo: dict[int, object]) -> Arrival:
        return self


def arrive() -> Arrival:
    """Install the scheduler's hooks if this is a child that runs one. Ends the process when they do not hold."""
    from sgl_patches import entry

    # A scheduler's entry function is unpickled before its arguments, so its module is loaded by now; in other
    # children it is not.
    if multiprocessing.parent_process() is not None and SCHEDULER_MODULE in sys.modules:
        with launch.errors_as_one_line():
            entry.install_in_scheduler()
    return Arrival()
