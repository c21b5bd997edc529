"""``python docs/refusals.py``: writes the README's table of refused options from ``settings/refusals.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
_PLACE = re.compile(r"(<summary>Refused options</summary>\n\n).*?(\n</details>)", re.DOTALL)


def with_table(readme: str, table: str) -> str:
    """The README with this table of refused options.

    Raises:
        ValueError: the README has no place for it.
    """
    text, places = _PLACE.subn(lambda match: match.group(1) + table.strip() + "\n" + match.group(2), readme)
    if places != 1:
        raise ValueError(f"{README.name} has {places} places for the table of refused options")
    return text


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "python"), str(ROOT)]
    from sglang_wavepp.settings.refusals import markdown_table

    README.write_text(with_table(README.read_text(encoding="utf-8"), markdown_table()), encoding="utf-8")
    print(f"wrote the table of refused options into {README.name}")
