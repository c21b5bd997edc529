"""Writes a tiny model as a directory that SGLang loads."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sglang_wavepp.cpu.models.configurations import END_OF_TURN, ModelKind, configuration

#: Written last: a directory that holds it is complete.
STAMP = "tiny-model.json"

#: Raise it when the same kind and seed give other files than before.
RECIPE = 1


class ModelDirectoryError(RuntimeError):
    """The directory cannot be used: it holds something else, or cannot be written."""


def make_model(directory: Path, kind: ModelKind, seed: int) -> bool:
    """Make the model at `directory`, or reuse the one that is there.

    Returns:
        True when it was made, False when a complete model of the same kind, seed and recipe was found.

    Raises:
        ModelDirectoryError: the directory holds anything else, or cannot be written.
    """
    wanted = {"kind": kind.value, "seed": seed, "recipe": RECIPE}
    if directory.exists():
        if _stamp(directory) == wanted:
            return False
        if not directory.is_dir():
            raise ModelDirectoryError(f"{directory} is not a directory")
        if any(directory.iterdir()):
            raise ModelDirectoryError(
                f"{directory} is not empty and is not the {kind.value} model of seed {seed}: "
                "name another directory, or remove this one"
            )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise ModelDirectoryError(f"cannot write beside {directory}: {error.strerror}") from error
    try:
        _write(draft, kind, seed, wanted)
        return _publish(draft, directory, wanted)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, kind: ModelKind, seed: int, stamp: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    from sglang_wavepp.cpu.models.tokenizer import write_tokenizer
    from sglang_wavepp.cpu.models.weights import random_weights

    write_tokenizer(draft)
    _write_json(draft / "config.json", configuration(kind))
    _write_json(draft / "generation_config.json", {"bos_token_id": 0, "eos_token_id": END_OF_TURN})
    tensors = {name: tensor.contiguous() for name, tensor in random_weights(kind, seed).items()}
    save_file(tensors, str(draft / "model.safetensors"), metadata={"format": "pt"})
    _write_json(draft / STAMP, stamp)
    draft.chmod(0o755)


def _publish(draft: Path, directory: Path, wanted: dict[str, Any]) -> bool:
    """Move the finished draft into place in one step, so that nobody ever reads half a model."""
    try:
        os.rename(draft, directory)
    except OSError as error:
        if _stamp(directory) == wanted:
            return False  # another process made the same model meanwhile
        raise ModelDirectoryError(f"cannot write {directory}: {error.strerror}") from error
    return True


def _stamp(directory: Path) -> Any:
    try:
        return json.loads((directory / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
