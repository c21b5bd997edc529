"""Fingerprint of a function, class or module constant of an installed package, read without importing it.

Reading the file instead of importing it keeps the check cheap, and shows the source as released even in a process
where the target is hooked already.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import textwrap
from functools import lru_cache
from pathlib import Path

_LENGTH = 16


class TargetMissingError(LookupError):
    """The dotted name does not exist in the installed release."""


def fingerprint_of(target: str) -> str:
    """Return 16 hex digits of the SHA-256 of the target's source.

    Indentation of the whole, comment lines, blank lines and trailing spaces do not count. Raises
    ``TargetMissingError`` when the name is not there.
    """
    return hashlib.sha256(source_of(target).encode()).hexdigest()[:_LENGTH]


def source_of(target: str) -> str:
    """Return the normalised source text of a dotted name. Raises ``TargetMissingError``."""
    path, names = _locate(target)
    text = path.read_text(encoding="utf-8")
    if not names:
        return _normalise(text)
    node: ast.AST = _parse(path)
    for name in names:
        found = _child(node, name)
        if found is None:
            raise TargetMissingError(target)
        node = found
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])  # type: ignore[attr-defined]
    return _normalise("\n".join(text.splitlines()[first - 1 : node.end_lineno]))  # type: ignore[attr-defined]


def _locate(target: str) -> tuple[Path, list[str]]:
    """Split a dotted name into the file of its module and the names inside it."""
    package, *rest = target.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise TargetMissingError(target)
    place = Path(next(iter(spec.submodule_search_locations)))
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").is_file():
        return place / f"{rest[0]}.py", rest[1:]
    if (place / "__init__.py").is_file():
        return place / "__init__.py", rest
    raise TargetMissingError(target)


@lru_cache(maxsize=32)
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _child(node: ast.AST, name: str) -> ast.AST | None:
    """The last definition of `name` directly in `node`; a class or function wins over an assignment."""
    definitions: list[ast.AST] = []
    assignments: list[ast.AST] = []
    for child in _statements(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and child.name == name:
            definitions.append(child)
        elif (isinstance(child, ast.AnnAssign) and _names(child.target, name)) or (
            isinstance(child, ast.Assign) and any(_names(target, name) for target in child.targets)
        ):
            assignments.append(child)
    found = definitions or assignments
    return found[-1] if found else None


def _statements(node: ast.AST) -> list[ast.stmt]:
    """Statements of a body, those inside if/else and try blocks included."""
    out: list[ast.stmt] = []
    for field in ("body", "orelse", "finalbody"):
        for child in getattr(node, field, ()):
            out.append(child)
            if isinstance(child, (ast.If, ast.Try, ast.With)):
                out.extend(_statements(child))
    return out


def _names(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _normalise(text: str) -> str:
    lines = (line.rstrip() for line in textwrap.dedent(text).splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
