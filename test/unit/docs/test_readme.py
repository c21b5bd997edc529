import importlib.util
from dataclasses import fields
from pathlib import Path

from sglang_wavepp.settings.flags import WaveSettings, flag_name
from sglang_wavepp.settings.refusals import markdown_table

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_flag_stands_in_the_readme() -> None:
    for field in fields(WaveSettings):
        assert f"`{flag_name(field.name)}`" in README, field.name


def test_the_table_of_refused_options_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("refusals", ROOT / "docs" / "refusals.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.with_table(README, markdown_table()) == README, "run: python docs/refusals.py"
