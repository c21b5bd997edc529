"""``python3 env``: make this checkout's ``.venv``, building the shared environment first when it is missing."""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this is the message for an older Python
    sys.exit(
        f"error: Python 3.10 or newer is needed, not {sys.version.split()[0]}; set PYTHON=/path/to/python3"
    )

from pathlib import Path

from checkout import Checkout
from project import Project
from shared import BuildError, SharedEnvironment


def main() -> int:
    """Return 0 when ``.venv`` is ready, 1 after one line that says why it is not, 130 when interrupted."""
    root = Path(__file__).resolve().parent.parent
    project = Project.read(root / "pyproject.toml")
    try:
        shared = SharedEnvironment.of(project)
        shared.ensure(project)
        Checkout(root).ensure(project, shared)
    except BuildError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run it again, nothing half-built is used", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
