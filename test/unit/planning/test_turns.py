from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.planning.turns import Turns, WaveKind


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200))
def test_a_ready_kind_waits_for_a_bounded_run_of_the_other(
    max_run: int, ready: list[tuple[bool, bool]]
) -> None:
    turns = Turns(max_run=max_run)
    waited = {WaveKind.PREFILL: 0, WaveKind.DECODE: 0}
    for prefill, decode in ready:
        kind = turns.choose(prefill_ready=prefill, decode_ready=decode)
        assert (kind is None) == (not prefill and not decode)
        if kind is not None:
            turns.launched(kind)
        if kind is WaveKind.PREFILL:
            assert prefill
        if kind is WaveKind.DECODE:
            assert decode
        for other, is_ready in ((WaveKind.PREFILL, prefill), (WaveKind.DECODE, decode)):
            waited[other] = 0 if kind is other or not is_ready else waited[other] + 1
            assert waited[other] <= max_run


def test_with_both_ready_the_kinds_alternate() -> None:
    turns = Turns()
    kinds = []
    for _ in range(6):
        kind = turns.choose(prefill_ready=True, decode_ready=True)
        assert kind is not None
        turns.launched(kind)
        kinds.append(kind)
    assert kinds == [WaveKind.PREFILL, WaveKind.DECODE] * 3


def test_a_kind_that_lets_its_turn_pass_keeps_it() -> None:
    turns = Turns()
    turns.launched(WaveKind.DECODE)
    for _ in range(3):
        assert turns.choose(prefill_ready=True, decode_ready=True) is WaveKind.PREFILL
        turns.launched(WaveKind.DECODE)  # nothing to prefill after all
