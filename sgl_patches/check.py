"""``python -m sgl_patches.check``: the ledger against the installed SGLang, as a table."""

from __future__ import annotations

import sys

from sgl_patches.ledger import PINNED_RELEASE, compare, installed_release


def main() -> int:
    """Print the table; return 0 when every entry matches, else 1."""
    findings = compare()
    rows = [("status", "needed by", "kind", "target", "recorded", "installed")]
    for finding in findings:
        patch = finding.patch
        rows.append(
            (
                finding.status,
                patch.needed_by.label,
                patch.kind.value,
                patch.target if patch.source is None else f"{patch.target} (watches {patch.source})",
                patch.fingerprint,
                finding.found or "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    wrong = [finding for finding in findings if finding.status != "ok"]
    print(
        f"{len(findings)} hooks, {len(wrong)} moved or missing; "
        f"pinned SGLang {PINNED_RELEASE}, installed {installed_release()}"
    )
    for finding in wrong:
        print(f"  {finding.patch.covered} {finding.status}: without this hook {finding.patch.breaks_without}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
