"""``python -m sglang_wavepp.cpu.models OUT_DIR --kind KIND``: make a tiny model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_wavepp.cpu.models.configurations import ModelKind
from sglang_wavepp.cpu.models.directory import ModelDirectoryError, make_model
from sglang_wavepp.cpu.models.tokenizer import TokenizerError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when the model is there, 1 with one line on stderr when it cannot be made."""
    arguments = _parser().parse_args(argv)
    kind = ModelKind(arguments.kind)
    try:
        made = make_model(arguments.out_dir, kind, arguments.seed)
    except (ModelDirectoryError, TokenizerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{'made' if made else 'found'} {kind.value} model (seed {arguments.seed}) at {arguments.out_dir}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_wavepp.cpu.models",
        description="Make a tiny random model that SGLang serves on the CPU reference platform. "
        "A complete model of the same kind and seed is reused.",
    )
    parser.add_argument(
        "out_dir", type=Path, metavar="OUT_DIR", help="directory of the model, made if missing"
    )
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in ModelKind],
        default=ModelKind.HYBRID.value,
        help="dense: grouped-query attention in all 8 layers; hybrid: recurrent layers with full attention in "
        "layers 4 and 8; hybrid-moe: hybrid with 8 experts (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
