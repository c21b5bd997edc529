import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_list_of_modules_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("structures", DOCS / "structures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "structures.md").read_text(encoding="utf-8")
    assert written == module.render(), "run: python docs/structures.py"
