import importlib.util
from pathlib import Path

from sglang_wavepp.telemetry.metrics import markdown_table

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_table_of_metrics_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("metrics", DOCS / "metrics.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "admission.md").read_text(encoding="utf-8")
    assert module.with_table(page, markdown_table()) == page, "run: python docs/metrics.py"
