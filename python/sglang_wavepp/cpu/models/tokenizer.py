"""A byte-level BPE tokenizer trained on text that ships with Python."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from sglang_wavepp.cpu.models.configurations import MAX_POSITIONS, SPECIAL_TOKENS, VOCABULARY

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TokenizerError(RuntimeError):
    """The text found on this machine does not give a tokenizer of the expected size."""


def write_tokenizer(directory: Path) -> None:
    """Train a tokenizer of ``VOCABULARY`` tokens and write its files into `directory`.

    Raises:
        TokenizerError: the training text is missing or too short.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_text(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise TokenizerError(
            f"the training text gave {tokenizer.get_vocab_size()} tokens instead of {VOCABULARY}"
        )
    end_of_text, _, end_of_turn = SPECIAL_TOKENS
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end_of_turn,
        pad_token=end_of_text,
        model_max_length=MAX_POSITIONS,
        chat_template=_CHAT_TEMPLATE,
    )
    fast.save_pretrained(str(directory))


def _training_text() -> Iterator[str]:
    """Lines of the language reference that `pydoc` shows, the largest prose in a Python installation."""
    found = importlib.util.find_spec("pydoc_data.topics")
    if found is None or found.origin is None:
        raise TokenizerError(
            "this Python ships no pydoc_data.topics, the text that the tokenizer is trained on"
        )
    yield from Path(found.origin).read_text(encoding="utf-8").splitlines()
