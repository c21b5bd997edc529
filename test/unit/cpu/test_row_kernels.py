"""Convolution, norms, products and experts: against plain formulas, and row by row against all rows at once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from sglang_wavepp import faults
from sglang_wavepp.cpu.kernels import (
    exact_weights,
    experts,
    gated_norm,
    linear,
    norms,
    short_convolution,
    snapshot_tracking,
)

ROWS, WIDTH = 37, 48
BFLOAT16_STEP = 2**-8


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(actual.double(), expected.double(), rtol=BFLOAT16_STEP, atol=BFLOAT16_STEP / 8)


# ---- short convolution


def convolve(x: torch.Tensor, weight: torch.Tensor, window: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """Spans of one sequence, one after the other, in slot 1."""
    return torch.cat(
        [
            short_convolution.extend_convolution(
                x[:, start:end],
                weight,
                None,
                window,
                torch.tensor([0, end - start]),
                [end - start],
                cache_indices=torch.tensor([1]),
                has_initial_state=torch.tensor([start > 0]),
            )
            for start, end in itertools.pairwise(cuts)
        ],
        dim=1,
    )


def test_convolution_agrees_with_torch_and_starts_from_zeros() -> None:
    x, weight, window = (
        normal(WIDTH, ROWS),
        normal(WIDTH, 4, seed=1).float(),
        torch.full((3, WIDTH, 3), 9.0).bfloat16(),
    )
    out = convolve(x, weight, window, [0, ROWS])
    padded = F.conv1d(x.double()[None], weight.double()[:, None], padding=3, groups=WIDTH)[0, :, :ROWS]
    assert close(out, F.silu(padded))
    assert torch.equal(window[1], x[:, -3:])
    assert (window[0] == 9).all()
    assert (window[2] == 9).all()


@pytest.mark.parametrize("cuts", [[0, 1, 2, ROWS], [0, 3, 20, ROWS], [0, ROWS - 1, ROWS]])
def test_convolution_cuts_do_not_show(cuts: list[int]) -> None:
    x, weight = normal(WIDTH, ROWS), normal(WIDTH, 4, seed=1).float()
    whole, parts = torch.zeros(2, WIDTH, 3).bfloat16(), torch.zeros(2, WIDTH, 3).bfloat16()
    assert torch.equal(convolve(x, weight, parts, cuts), convolve(x, weight, whole, [0, ROWS]))
    assert torch.equal(parts, whole)


def test_convolution_of_single_tokens_continues_a_span_and_skips_padding() -> None:
    x, weight = normal(WIDTH, ROWS), normal(WIDTH, 4, seed=1).float()
    whole, stepped = torch.zeros(2, WIDTH, 3).bfloat16(), torch.zeros(2, WIDTH, 3).bfloat16()
    expected = convolve(x, weight, whole, [0, ROWS])
    convolve(x, weight, stepped, [0, 30])
    for t in range(30, ROWS):
        pair = x[:, t].expand(2, WIDTH)
        slots = torch.tensor([-1, 1])
        out = short_convolution.decode_convolution(
            pair, stepped, weight, activation="silu", conv_state_indices=slots
        )
        assert torch.equal(out[1], expected[:, t])
    assert torch.equal(stepped, whole)


def test_a_padding_span_is_skipped() -> None:
    x, weight, window = (
        normal(WIDTH, 10),
        normal(WIDTH, 4, seed=1).float(),
        torch.ones(2, WIDTH, 3).bfloat16(),
    )
    out = short_convolution.extend_convolution(
        x,
        weight,
        None,
        window,
        torch.tensor([0, 4, 10]),
        [4, 6],
        cache_indices=torch.tensor([-1, 1]),
        has_initial_state=torch.tensor([True, False]),
    )
    assert out[:, :4].count_nonzero() == 0
    assert out[:, 4:].count_nonzero() > 0
    assert (window[0] == 1).all()


# ---- norms and activations


def test_gated_norm_agrees_with_its_formula_and_rows_are_independent() -> None:
    x, gate, weight = normal(ROWS, 4, WIDTH), normal(ROWS, 4, WIDTH, seed=1), normal(WIDTH, seed=2)
    out = gated_norm.gated_rms_norm(x, gate, weight, None, activation="sigmoid", eps=1e-5)
    exact = x.double()
    expected = (
        exact
        / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        * weight.double()
        * gate.double().sigmoid()
    )
    assert close(out, expected)
    single = [
        gated_norm.gated_rms_norm(x[i], gate[i], weight, None, activation="sigmoid", eps=1e-5)
        for i in range(ROWS)
    ]
    assert torch.equal(torch.stack(single), out)
    with pytest.raises(NotImplementedError):
        gated_norm.gated_rms_norm(x, gate, weight, weight)


def norm_layer() -> SimpleNamespace:
    return SimpleNamespace(
        weight=torch.nn.Parameter(normal(WIDTH, seed=3), requires_grad=False),
        variance_epsilon=1e-6,
        override_orig_dtype=None,
        fp32_residual=False,
        cast_x_before_out_mul=False,
        variance_size_override=None,
    )


def test_rms_norm_adds_the_residual_before_and_hands_it_on() -> None:
    layer, x, residual = norm_layer(), normal(ROWS, WIDTH), normal(ROWS, WIDTH, seed=1)
    out, summed = norms.rms_norm(layer, x, residual)
    exact = x.double() + residual.double()
    assert torch.equal(summed, exact.bfloat16())
    expected = exact / (exact.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.weight.double()
    assert close(out, expected)
    assert torch.equal(
        norms.rms_norm(layer, summed), torch.stack([norms.rms_norm(layer, row) for row in summed])
    )


def test_silu_and_mul_agrees_with_its_formula() -> None:
    x = normal(ROWS, 2 * WIDTH)
    gate, up = x.double()[:, :WIDTH], x.double()[:, WIDTH:]
    assert close(norms.silu_and_mul(None, x), gate * gate.sigmoid() * up)


# ---- products with weights


def test_products_are_rounded_once_and_rows_are_independent() -> None:
    layer = SimpleNamespace(weight=torch.nn.Parameter(normal(96, WIDTH, seed=1), requires_grad=False))
    x, bias = normal(ROWS, WIDTH), normal(96, seed=2)
    out = linear.apply_linear(None, layer, x, bias)
    assert torch.equal(out, (x.double() @ layer.weight.double().T + bias.double()).bfloat16())
    assert torch.equal(torch.cat([linear.apply_linear(None, layer, row[None], bias) for row in x]), out)


def test_batched_products_are_rounded_once() -> None:
    layer = SimpleNamespace(weight=torch.nn.Parameter(normal(2, 40, WIDTH, seed=1), requires_grad=False))
    x = normal(2, ROWS, WIDTH)
    expected = torch.einsum("brk,bok->bro", x.double(), layer.weight.double()).bfloat16()
    assert torch.equal(linear.apply_batched_linear(layer, x), expected)


def test_absorbed_weights_multiply_exactly_with_and_without_an_output() -> None:
    weight, x = normal(3, WIDTH, 16, seed=1), normal(3, ROWS, WIDTH)
    wrapped = exact_weights.AbsorbedWeight.wrap(weight)
    expected = torch.bmm(x.double(), weight.double()).bfloat16()
    assert torch.equal(torch.bmm(x, wrapped), expected)
    out = torch.empty(ROWS, 3, 16).bfloat16()
    torch.bmm(x, wrapped, out=out.transpose(0, 1))
    assert torch.equal(out.transpose(0, 1), expected)
    assert type(torch.bmm(x, wrapped)) is torch.Tensor
    assert wrapped.dtype is torch.bfloat16


def test_logits_are_float32_and_foreign_heads_go_to_sglang() -> None:
    head = SimpleNamespace(weight=torch.nn.Parameter(normal(64, WIDTH, seed=1), requires_grad=False))
    hidden = normal(ROWS, WIDTH)

    def upstream(*args: object, **kwargs: object) -> str:
        return "upstream"

    logits = linear.compute_logits(upstream, None, hidden, head)
    assert torch.equal(logits, (hidden.double() @ head.weight.double().T).float())
    assert linear.compute_logits(upstream, None, hidden, SimpleNamespace()) == "upstream"
    head.set_lora = True
    assert linear.compute_logits(upstream, None, hidden, head) == "upstream"


def test_copies_follow_the_weights_after_a_reload() -> None:
    weight = torch.nn.Parameter(normal(8, WIDTH), requires_grad=False)
    assert exact_weights.exact_copy(weight) is exact_weights.exact_copy(weight)
    weight.data.mul_(2)
    exact_weights.forget_copies()
    assert torch.equal(exact_weights.exact_copy(weight), weight.double())


# ---- experts


def expert_layer(count: int = 5, inner: int = 24) -> SimpleNamespace:
    return SimpleNamespace(
        w13_weight=torch.nn.Parameter(normal(count, 2 * inner, WIDTH, seed=1), requires_grad=False),
        w2_weight=torch.nn.Parameter(normal(count, WIDTH, inner, seed=2), requires_grad=False),
    )


PLAIN = SimpleNamespace(activation="silu", gemm1_alpha=None, apply_router_weight_on_input=False)


def test_experts_agree_with_their_formula_row_by_row() -> None:
    layer, x = expert_layer(), normal(ROWS, WIDTH)
    generator = torch.Generator().manual_seed(5)
    chosen = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(ROWS)]).int()
    shares = torch.rand(ROWS, 2, generator=generator)
    out = experts.apply_experts(layer, x, (shares, chosen, None), PLAIN)
    expected = torch.zeros(ROWS, WIDTH).double()
    for row in range(ROWS):
        for expert, share in zip(chosen[row].tolist(), shares[row].tolist(), strict=True):
            gate, up = (layer.w13_weight[expert].double() @ x[row].double()).chunk(2)
            expected[row] += share * (layer.w2_weight[expert].double() @ (F.silu(gate) * up))
    assert torch.equal(out, expected.bfloat16())
    rows = [
        experts.apply_experts(layer, x[i : i + 1], (shares[i : i + 1], chosen[i : i + 1], None), PLAIN)
        for i in range(ROWS)
    ]
    assert torch.equal(torch.cat(rows), out)


def test_padding_rows_choose_no_expert() -> None:
    layer, x = expert_layer(), normal(2, WIDTH)
    chosen, shares = torch.tensor([[0, 3], [-1, -1]]), torch.ones(2, 2)
    out = experts.apply_experts(layer, x, (shares, chosen, None), PLAIN)
    assert out[0].count_nonzero() > 0
    assert out[1].count_nonzero() == 0


def test_other_experts_are_refused() -> None:
    odd = SimpleNamespace(**{**vars(PLAIN), "activation": "gelu"})
    with pytest.raises(NotImplementedError):
        experts.apply_experts(
            expert_layer(), normal(1, WIDTH), (torch.ones(1, 1), torch.zeros(1, 1).int(), None), odd
        )


def test_routing_chooses_by_biased_score_and_weighs_by_score() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]).double()
    logits, bias = (scores / (1 - scores)).log(), torch.tensor([0.25, 0.0, 0.0, 0.0])
    weights, chosen = experts.route(torch.empty(2, 1), logits, bias, 2, True, 1, 1)
    assert chosen.tolist() == [[3, 0], [0, 1]]  # the bias lifts expert 0; equal scores go to the lower number
    assert torch.allclose(weights, torch.tensor([[0.8, 0.2], [0.5, 0.5]]))
    plain, _ = experts.route(
        torch.empty(2, 1),
        logits,
        bias,
        2,
        False,
        routed_scaling_factor=3.0,
        apply_routed_scaling_factor_on_output=True,
    )
    assert torch.allclose(plain, torch.tensor([[1.2, 0.3], [0.75, 0.75]]))


@pytest.mark.parametrize("special", [{"num_expert_group": 2}, {"num_fused_shared_experts": 1}])
def test_other_routing_is_refused(special: dict[str, int]) -> None:
    with pytest.raises(NotImplementedError):
        experts.route(torch.empty(1, 1), torch.zeros(1, 4), torch.zeros(4), 2, True, **special)


# ---- snapshot tracking in decode


@pytest.mark.parametrize("layers", [False, True])
def test_masked_rows_are_copied(layers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.FAULT_VARIABLE, raising=False)
    shape = (2, 6, 3) if layers else (6, 3)
    conv, states = normal(*shape), normal(*shape, seed=1)
    before_conv, before = conv.clone(), states.clone()
    track = snapshot_tracking.track_all_layers if layers else snapshot_tracking.track_one_layer
    # Row 3 is masked, but lies past the batch; row 2 was freed.
    slots, mask = torch.tensor([0, 1, -1, 2]), torch.tensor([True, False, True, True])
    track(conv, states, slots, mask, torch.tensor([4, 5, 5, 5]), 3, check_freed_slots=True)
    for now, then in ((conv, before_conv), (states, before)):
        assert torch.equal(now[..., 4, :], then[..., 0, :])
        rest = torch.tensor([0, 1, 2, 3, 5])
        assert torch.equal(now.index_select(-2, rest), then.index_select(-2, rest))


def test_the_zero_snapshot_fault_reaches_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.FAULT_VARIABLE, faults.ZERO_SNAPSHOT)
    conv, states = normal(4, 3), normal(4, 3)
    snapshot_tracking.track_one_layer(
        conv, states, torch.tensor([0]), torch.tensor([True]), torch.tensor([2]), 1
    )
    assert states[2].count_nonzero() == 0
    assert torch.equal(conv[2], conv[0])
