"""Travels with the arguments to every spawned child and installs the hooks there.

A child must not serve without its hooks. SGLang swallows whatever goes wrong while it loads plugins, so the request
does not depend on that: it is pickled with the arguments and acts while the child unpickles them, which is before
SGLang runs any code of the child. Whatever goes wrong there ends the child.
"""

from __future__ import annotations

import os
import sys

from sgl_patches import launch
from sgl_patches.scheduler import MODULE as SCHEDULER_MODULE


class Arrival:
    """Attached to the arguments of a WavePP server. Unpickling it in another process installs what that one needs."""

    def __reduce__(self) -> tuple[object, ...]:
        return (arrive, (os.getpid(),))


def arrive(sender: int) -> Arrival:
    """Install the scheduler's hooks if this is a child that runs one. Ends the process when they do not hold.

    ``sender`` is the process id of who pickled: a copy made inside the launcher installs nothing.
    """
    from sgl_patches import entry

    # A scheduler's entry function is unpickled before its arguments, so its module is loaded by now; in other
    # children it is not.
    if os.getpid() != sender and SCHEDULER_MODULE in sys.modules:
        with launch.errors_as_one_line():
            entry.install_in_scheduler()
    return Arrival()
