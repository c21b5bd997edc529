"""The model of paced servers: the tiny dense model's tokenizer, and a configuration that costs no memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmark.models import cache_folder
from benchmark.models import model_folder as tiny_model_folder
from sglang_wavepp.cpu.models.configurations import ModelKind, configuration

#: One token takes 32 bytes a layer, so that pools of millions of tokens fit into the memory of a small machine.
_SIZES = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 1 << 20,
}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def paced_model_folder() -> Path:
    """The folder, made on first use. It has no weights: a paced server is started with ``--load-format dummy``."""
    tokenizer = tiny_model_folder(ModelKind.DENSE)
    folder = cache_folder() / "models" / "paced"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER:
        if (tokenizer / name).exists() and not (folder / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    config = json.dumps({**configuration(ModelKind.DENSE), **_SIZES}, indent=2) + "\n"
    path = folder / "config.json"
    if not path.exists() or path.read_text() != config:
        path.write_text(config)
    return folder
