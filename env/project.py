"""What the environment needs to know of ``pyproject.toml``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """Name, version, requirements (extras included) and entry points, by group."""

    name: str
    version: str
    requirements: tuple[str, ...]
    entry_points: dict[str, dict[str, str]]

    @staticmethod
    def read(path: Path) -> Project:
        """Read the few things needed. Python 3.10 has no TOML reader, and nothing is installed yet."""
        sections = _sections(path.read_text(encoding="utf-8"))
        project = sections["project"]
        extras = sections.get("project.optional-dependencies", {})
        requirements = [*_list(project["dependencies"])]
        for value in extras.values():
            requirements += _list(value)
        groups = {
            name.split('"')[1]: {key: str(ast.literal_eval(value)) for key, value in table.items()}
            for name, table in sections.items()
            if name.startswith('project.entry-points."')
        }
        return Project(
            name=str(ast.literal_eval(project["name"])),
            version=str(ast.literal_eval(project["version"])),
            requirements=tuple(requirements),
            entry_points=groups,
        )


def _list(value: str) -> list[str]:
    """A TOML array of plain strings is a Python list of strings."""
    return [str(item) for item in ast.literal_eval(value)]


def _sections(text: str) -> dict[str, dict[str, str]]:
    """Section name -> key -> value as written. Arrays may span lines; that is all of TOML that is used here."""
    sections: dict[str, dict[str, str]] = {}
    table: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        header = re.fullmatch(r"\[+([^\[\]]+)\]+", line.strip())
        if header:
            table = sections.setdefault(header[1].strip(), {})
            continue
        entry = re.match(r"\s*([\w.\"-]+)\s*=\s*(.+)", line)
        if entry is None:
            continue
        key, value = entry[1].strip('"'), entry[2]
        while value.count("[") > value.count("]"):
            value += "\n" + next(lines)
        table[key] = value
    return sections
