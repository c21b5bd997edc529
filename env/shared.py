"""The shared environment: built once per set of dependencies, used by every checkout and by CI.

It holds the dependencies and not the project. Its folder is named after everything that decides its contents, so a
folder of another set of dependencies or another Python is never used. It is complete when its marker exists: an
interrupted build leaves none and is started over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from project import Project

CACHE_VARIABLE = "SGLANG_WAVEPP_CACHE"
_MARKER = "complete.json"
_LEAST_FREE_GIB = 14


class BuildError(Exception):
    """The environment cannot be made; the text is one line that says what to do."""


@dataclass(frozen=True)
class SharedEnvironment:
    """``path`` is the folder of a virtual environment, existing or not."""

    path: Path

    @staticmethod
    def of(project: Project) -> SharedEnvironment:
        """The environment for these requirements and the Python that runs this."""
        parts = {
            "requirements": sorted(project.requirements),
            "python": platform.python_version(),
            "base": str(Path(sys.base_prefix).resolve()),
            "machine": platform.machine(),
        }
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        return SharedEnvironment(cache_folder() / f"env-{key}")

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages lie."""
        return self.path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def is_complete(self) -> bool:
        """Whether it was built to the end."""
        return (self.path / _MARKER).is_file()

    def ensure(self, project: Project) -> None:
        """Build it unless it is complete. Waits for another process that is building it."""
        if self.is_complete():
            return
        _require_tools()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(self.path.with_suffix(".lock")):
            if not self.is_complete():
                self._build(project)

    def _build(self, project: Project) -> None:
        free = shutil.disk_usage(self.path.parent).free / 2**30
        if free < _LEAST_FREE_GIB:
            raise BuildError(
                f"{self.path.parent} has {free:.0f} GiB free, the environment needs about {_LEAST_FREE_GIB}; "
                f"free some, or set {CACHE_VARIABLE} to a folder elsewhere"
            )
        print(f"Building the shared environment in {self.path} (once; 5 to 10 minutes, 11 GiB)", flush=True)
        started = time.monotonic()
        if self.path.exists():
            shutil.rmtree(self.path)
        _run([sys.executable, "-m", "venv", str(self.path)], "python3 -m venv failed")
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
        _run([*pip, "--quiet", "--upgrade", "pip", "setuptools", "wheel"], "pip could not update itself")
        _run([*pip, *project.requirements], "pip could not install the dependencies")
        marker = {"requirements": list(project.requirements), "python": platform.python_version()}
        unfinished = self.path / f"{_MARKER}.new"
        unfinished.write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, self.path / _MARKER)
        print(f"Shared environment ready after {time.monotonic() - started:.0f} s", flush=True)


def cache_folder() -> Path:
    """``$SGLANG_WAVEPP_CACHE``, else ``sglang-wavepp`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sglang-wavepp"


def _require_tools() -> None:
    """Debian's Python has neither of these unless python3-venv is installed; with pyenv both may be cut out."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise BuildError(
            f"{sys.executable} has no {' and no '.join(missing)} (python3 -m venv with pip is needed); "
            "install your system's python3-venv package, or set PYTHON to another Python"
        )


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by the process that builds. The kernel gives it up when that process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process is building the shared environment; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], failure: str) -> None:
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise BuildError(f"{failure} (status {status}); the lines above say why")
