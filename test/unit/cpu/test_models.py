"""The command that makes tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from sglang_wavepp.cpu.models import directory
from sglang_wavepp.cpu.models.__main__ import main
from sglang_wavepp.cpu.models.configurations import VOCABULARY, ModelKind, configuration
from sglang_wavepp.cpu.models.tokenizer import write_tokenizer
from sglang_wavepp.cpu.models.weights import random_weights


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(target)
    return target


@pytest.fixture
def quick_tokenizer(monkeypatch: pytest.MonkeyPatch, tokenizer_files: Path) -> None:
    """Copies the trained files: training takes seconds, and one test of it is enough."""

    def copy(target: Path) -> None:
        for file in tokenizer_files.iterdir():
            (target / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr("sglang_wavepp.cpu.models.tokenizer.write_tokenizer", copy)


def test_the_tokenizer_has_the_vocabulary_of_the_models_and_loses_nothing(tokenizer_files: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_files / "tokenizer.json"))
    text = "The `with` statement wraps a block.\n\tüñî 漢字 \N{GRINNING FACE}"
    ids = tokenizer.encode(text).ids
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id("<|im_end|>") == configuration(ModelKind.DENSE)["eos_token_id"]


@pytest.mark.usefixtures("quick_tokenizer")
@pytest.mark.parametrize("kind", list(ModelKind))
def test_a_made_directory_is_complete_and_reused(
    kind: ModelKind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "model"
    assert main([str(out), "--kind", kind.value]) == 0
    assert "made" in capsys.readouterr().out
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} <= set(before)
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == 8
    assert config["max_position_embeddings"] == 32768
    if kind is not ModelKind.DENSE:
        assert config["linear_attn_config"]["full_attn_layers"] == [4, 8]

    assert main([str(out), "--kind", kind.value]) == 0
    assert "found" in capsys.readouterr().out
    assert {file.name: file.stat().st_mtime_ns for file in out.iterdir()} == before
    assert [entry.name for entry in out.parent.iterdir()] == ["model"]


@pytest.mark.usefixtures("quick_tokenizer")
def test_a_directory_that_holds_something_else_is_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "m"), "--kind", "dense"]) == 0
    assert main([str(tmp_path / "m"), "--kind", "hybrid"]) == 1
    assert "is not the hybrid model of seed 0" in capsys.readouterr().err
    assert main([str(tmp_path / "m"), "--kind", "dense", "--seed", "1"]) == 1
    assert json.loads((tmp_path / "m" / directory.STAMP).read_text())["kind"] == "dense"

    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text("{}")
    assert main([str(tmp_path / "half"), "--kind", "dense"]) == 1
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file"), "--kind", "dense"]) == 1
    assert "not a directory" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_tokenizer")
def test_nothing_is_left_behind_when_making_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: ModelKind, seed: int) -> dict[str, torch.Tensor]:
        raise MemoryError

    monkeypatch.setattr("sglang_wavepp.cpu.models.weights.random_weights", fail)
    with pytest.raises(MemoryError):
        directory.make_model(tmp_path / "m", ModelKind.DENSE, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", list(ModelKind))
def test_weights_depend_on_the_seed_and_on_nothing_else(kind: ModelKind) -> None:
    first, again, other = (random_weights(kind, seed) for seed in (3, 3, 4))
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.usefixtures("quick_tokenizer")
def test_weights_on_disk_are_the_weights(tmp_path: Path) -> None:
    directory.make_model(tmp_path / "m", ModelKind.HYBRID, 5)
    stored = load_file(str(tmp_path / "m" / "model.safetensors"))
    drawn = random_weights(ModelKind.HYBRID, 5)
    assert stored.keys() == drawn.keys()
    assert all(torch.equal(stored[name], drawn[name]) for name in drawn)


def test_an_unknown_kind_is_refused_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["somewhere", "--kind", "tiny"])
    assert "hybrid-moe" in capsys.readouterr().err
