"""The checkout's own ``.venv``: the shared environment's packages, and this checkout's code and entry points.

Every process started with ``.venv/bin/python`` sees the checkout as if it were installed, spawned children included,
while several checkouts share one environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from project import Project
from shared import BuildError, SharedEnvironment

_STAMP = "wavepp-stamp.json"
_PACKAGES = {"sglang_wavepp": "python/sglang_wavepp", "sgl_patches": "sgl_patches"}
_SCRIPT = """#!{python}
import sys
from importlib.metadata import entry_points

(point,) = [p for p in entry_points(group="console_scripts") if p.name == "{name}"]
sys.exit(point.load()())
"""


@dataclass(frozen=True)
class Checkout:
    """A folder with this project's sources."""

    root: Path

    @property
    def venv(self) -> Path:
        """Its virtual environment."""
        return self.root / ".venv"

    def ensure(self, project: Project, shared: SharedEnvironment) -> None:
        """Make or renew ``.venv`` when it does not fit the project and the shared environment any more."""
        stamp = json.dumps(
            {
                "root": str(self.root),
                "shared": str(shared.path),
                "project": [project.name, project.version, project.entry_points],
            }
        )
        if self._stamp() == stamp:
            return
        if self.venv.is_symlink() or self.venv.is_file():
            raise BuildError(f"{self.venv} is not a folder; remove it")
        if self.venv.exists():
            shutil.rmtree(self.venv)
        command = [sys.executable, "-m", "venv", "--without-pip", str(self.venv)]
        if subprocess.run(command, check=False).returncode != 0:
            raise BuildError("python3 -m venv failed; the lines above say why")
        site = self.venv / shared.site_packages.relative_to(shared.path)
        (site / "wavepp_shared.pth").write_text(
            f"import site; site.addsitedir({str(shared.site_packages)!r})\n"
        )
        for package, folder in _PACKAGES.items():
            (site / package).symlink_to(self.root / folder, target_is_directory=True)
        _write_metadata(site, project)
        for script in ("sglang", "pytest"):
            self._write_script(script)
        (self.venv / _STAMP).write_text(stamp, encoding="utf-8")
        print(f"{self.venv} uses {shared.path}", flush=True)

    def _stamp(self) -> str | None:
        try:
            return (self.venv / _STAMP).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _write_script(self, name: str) -> None:
        """A console script that runs in this ``.venv``: the shared environment's own one would not see the checkout."""
        path = self.venv / "bin" / name
        path.write_text(_SCRIPT.format(python=self.venv / "bin" / "python", name=name), encoding="utf-8")
        os.chmod(path, 0o755)


def _write_metadata(site: Path, project: Project) -> None:
    """What an installed wheel would leave, so that SGLang finds the entry points."""
    folder = site / f"{project.name.replace('-', '_')}-{project.version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version}\n", encoding="utf-8"
    )
    (folder / "INSTALLER").write_text("make env\n", encoding="utf-8")
    lines: list[str] = []
    for group, points in project.entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
    (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
