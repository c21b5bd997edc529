"""``python docs/structures.py``: writes ``docs/structures.md``, every module in the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "structures.md"
ROOMS = (
    (
        "python/sglang_wavepp",
        "The package. Arrows point down this list's last column only: `executor` and `rank` use"
        " `cache` and `plane`, those use `admission` and `planning`, which use nothing of SGLang, torch or ZMQ.",
    ),
    ("sgl_patches", "The ledger of hooks into SGLang. It imports the package, never the reverse."),
    ("benchmark", "Servers, workloads, the demo and the wide matrix."),
    ("env", "The environment that all checkouts share."),
)


def first_sentence(path: Path) -> str:
    """First sentence of a module's docstring, on one line.

    Raises:
        ValueError: the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    text = " ".join(docstring.split("\n\n")[0].split())
    match = re.match(r".*?[.!?](?= [A-Z`]|$)", text)
    return match.group(0) if match else text


def render() -> str:
    """The whole page."""
    lines = [
        "# Structures: every module in one sentence",
        "",
        "Written by `python docs/structures.py`; a test compares.",
        "",
    ]
    for room, about in ROOMS:
        lines += [f"## {room}", "", about, ""]
        folder = ROOT / room
        for path in sorted(folder.rglob("*.py"), key=lambda p: (p.parent.as_posix(), p.name)):
            name = path.relative_to(folder)
            if name.name == "__init__.py":
                if name.parent != Path("."):
                    lines += ["", f"**{name.parent.as_posix()}/** {first_sentence(path)}", ""]
                continue
            lines.append(f"- `{name.as_posix()}`: {first_sentence(path)}")
        lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit("usage: python docs/structures.py")
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
