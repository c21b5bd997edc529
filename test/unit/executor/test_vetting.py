from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_wavepp.executor.vetting import complaint

pytestmark = pytest.mark.unit


def request(*ids: int, top: int = 0, logprob: bool = True) -> Any:
    return SimpleNamespace(
        origin_input_ids=array("q", ids),
        return_logprob=logprob,
        logprob=SimpleNamespace(top_logprobs_num=top) if logprob else None,
    )


@pytest.mark.parametrize("ids", [(0,), (99,), (0, 99, 5), ()])
def test_known_tokens_pass(ids: tuple[int, ...]) -> None:
    assert complaint(request(*ids), vocabulary=100) is None


@pytest.mark.parametrize("wrong", [-1, 100, 2**63 - 1, -(2**63)])
def test_unknown_tokens_are_named(wrong: int) -> None:
    text = complaint(request(5, wrong, 7), vocabulary=100)
    assert text is not None
    assert f"token id {wrong};" in text
    assert "0 to 99" in text


@pytest.mark.parametrize(("top", "passes"), [(0, True), (100, True), (101, False), (-1, False)])
def test_top_logprobs_end_with_the_vocabulary(top: int, passes: bool) -> None:
    assert (complaint(request(5, top=top), vocabulary=100) is None) is passes


def test_nobody_asks_for_logprobs() -> None:
    assert complaint(request(5, logprob=False), vocabulary=100) is None
