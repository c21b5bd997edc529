"""``python docs/metrics.py``: writes the table of metrics into ``docs/admission.md`` from ``telemetry/metrics.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "admission.md"
_PLACE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end of metrics -->)", re.DOTALL)


def with_table(page: str, table: str) -> str:
    """The page with this table of metrics.

    Raises:
        ValueError: the page has no place for it.
    """
    text, places = _PLACE.subn(lambda match: match.group(1) + table.strip() + "\n" + match.group(2), page)
    if places != 1:
        raise ValueError(f"{PAGE.name} has {places} places for the table of metrics")
    return text


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "python"), str(ROOT)]
    from sglang_wavepp.telemetry.metrics import markdown_table

    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), markdown_table()), encoding="utf-8")
    print(f"wrote the table of metrics into {PAGE.name}")
