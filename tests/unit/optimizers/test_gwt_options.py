"""GWT's options: other wavelets, safe details, axes, rules, the largest coefficients."""

import math

import numpy
import pytest
import pywt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from memopt import GWT, UnsupportedCombination
from memopt.rules import adafactor, muon
from memopt.subspaces import haar
from memopt.subspaces.wavelet import Wavelet, transform

WAVELETS = ("db2", "db4", "sym2", "sym5", "coif1", "bior1.3", "bior2.2", "rbio3.1")
ORTHOGONAL = ("db2", "db4", "sym2", "sym5", "coif1")


def draw(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def stepped(gradients: list[Tensor], **arguments) -> Tensor:
    weight = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = GWT([weight], lr=1.0, scale=1.0, **arguments)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


# ---- wavelets ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["haar", *WAVELETS])
@settings(max_examples=15)
@given(columns=st.integers(1, 70), level=st.integers(0, 4), seed=st.integers(0, 2**31))
def test_exact_reconstruction_at_every_width(name, columns, level, seed) -> None:
    x, wave = draw(3, columns, seed=seed), transform(name, level)
    band, details = wave.forward(x)
    assert band.shape[1] == haar.approximation_width(columns, level)
    torch.testing.assert_close(wave.inverse(band, details, columns), x, rtol=0, atol=1e-11)
    torch.testing.assert_close(wave.approximate(x), band)
    # the approximation's part and the details' part of the inverse add up
    ones = torch.ones_like(band)
    rebuilt = wave.spread(band, columns) + wave.scaled_details(x, band, ones)
    torch.testing.assert_close(rebuilt, x, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", WAVELETS)
def test_equals_pywavelets(name) -> None:
    x = draw(2, 256, seed=1)
    band, details = transform(name, 3).forward(x)
    theirs = pywt.wavedec(x.numpy(), name, mode="periodization", level=3, axis=-1)
    for ours, expected in zip([band, *details], theirs, strict=True):
        numpy.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ORTHOGONAL)
@pytest.mark.parametrize("columns", [4, 16, 48])
def test_orthogonal_wavelets_are_isometries(name, columns) -> None:
    band, details = transform(name, 2).forward(torch.eye(columns, dtype=torch.float64))
    matrix = torch.cat((band, *details), dim=1)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(columns, dtype=torch.float64))


def test_general_filters_give_haar_too() -> None:
    # the fast form of Haar against the bank of filters, one whole trajectory
    fast = transform("haar", 2)
    bank = pywt.Wavelet("haar")
    analysis = torch.tensor([bank.dec_lo, bank.dec_hi], dtype=torch.float64).unsqueeze(1).flip(-1)
    synthesis = torch.tensor([bank.rec_lo, bank.rec_hi], dtype=torch.float64).unsqueeze(1)
    general = Wavelet(analysis, synthesis, 2)
    x, divisor = draw(5, 13, seed=2), draw(5, 4, seed=3).abs() + 0.1
    band = fast.approximate(x)
    torch.testing.assert_close(general.approximate(x), band)
    torch.testing.assert_close(general.spread(band, 13), fast.spread(band, 13))
    torch.testing.assert_close(
        general.scaled_details(x, band, divisor), fast.scaled_details(x, band, divisor)
    )


@pytest.mark.parametrize("name", ["db2", "bior1.3"])
def test_other_wavelets_keep_the_same_state(name) -> None:
    weight = nn.Parameter(torch.zeros(6, 21))
    optimizer = GWT([weight], level=2, wavelet=name)
    weight.grad = draw(6, 21).float()
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].shape == (6, 6)


# ---- safe details --------------------------------------------------------------------------


def test_official_details_are_heavy_tailed_early_and_safe_ones_are_not() -> None:
    # The official optimizer's finest band at 256 x 256, level 2: RMS 826 at t = 1 (a ratio of
    # Gaussians has no second moment: this one scatters), 14.4 at t = 2, 1.7 at t = 10.
    gradients = [draw(256, 256, seed=seed) for seed in range(10)]
    rms, longest = {}, {}
    for details in ("official", "safe"):
        weight = nn.Parameter(torch.zeros(256, 256, dtype=torch.float64))
        optimizer = GWT([weight], lr=1.0, scale=1.0, level=2, details=details)
        for step, gradient in enumerate(gradients, 1):
            before = weight.detach().clone()
            weight.grad = gradient
            optimizer.step()
            moved = before - weight.detach()
            rms[details, step] = float(haar.forward(moved, 2)[1][-1].square().mean().sqrt())
            longest[details] = max(longest.get(details, 0.0), float(moved.abs().max()))
    assert rms["official", 1] > 100
    assert rms["official", 2] == pytest.approx(14.4, rel=0.2)
    assert rms["official", 10] == pytest.approx(1.7, rel=0.1)
    assert all(rms["safe", step] < 2 for step in range(1, 11))
    # the approximation moves a weight by at most half a step at level 2, a safe detail by three
    assert longest["safe"] <= 3.51 and longest["official"] > 1e4


def test_safe_details_bound_the_zero_band() -> None:
    alternating = torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=torch.float64)
    official = stepped([alternating], level=1)
    safe = stepped([alternating], level=1, details="safe", detail_clip=3.0)
    assert float(official.abs().max()) > 1e5
    torch.testing.assert_close(safe, -3.0 * alternating.sign())


def test_safe_and_official_agree_in_the_long_run() -> None:
    # the corrections tend to one; what stays is the bound
    gradients = [draw(16, 64, seed=seed) for seed in range(300)]
    shared = {"level": 2, "betas": (0.5, 0.9), "detail_clip": 1e9}
    weights = {}
    for details in ("official", "safe"):
        weight = nn.Parameter(torch.zeros(16, 64, dtype=torch.float64))
        optimizer = GWT([weight], lr=1.0, scale=1.0, details=details, **shared)
        for step, gradient in enumerate(gradients):
            if step == 299:
                before = weight.detach().clone()
            weight.grad = gradient
            optimizer.step()
        weights[details] = weight.detach() - before
    torch.testing.assert_close(weights["safe"], weights["official"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["adafactor", "muon"])
def test_safe_details_need_a_bias_correction(rule) -> None:
    with pytest.raises(UnsupportedCombination, match="details='safe'.*rule='adam'"):
        GWT([nn.Parameter(torch.zeros(4, 4))], details="safe", rule=rule)


# ---- axes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["adam", "adafactor", "adam_mini"])
def test_first_axis_is_the_last_of_the_transpose(rule) -> None:
    gradients = [draw(12, 7, seed=seed) for seed in range(4)]
    first = stepped(gradients, level=2, axis="first", rule=rule)
    last = stepped([g.T.contiguous() for g in gradients], level=2, axis="last", rule=rule)
    torch.testing.assert_close(first, last.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape, kept", [((64, 17), 16 * 17), ((17, 64), 17 * 16), ((8, 8), 16)])
def test_cheapest_axis_keeps_the_least(shape, kept) -> None:
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = GWT([weight], level=2, axis="cheapest")
    weight.grad = draw(*shape).float()
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].numel() == kept


# ---- rules ---------------------------------------------------------------------------------


def test_adafactor_follows_the_official_form_step_by_step() -> None:
    gradients = [draw(6, 16, seed=seed) for seed in range(5)]
    lr, level = 0.1, 2
    weight = torch.zeros(6, 16, dtype=torch.float64)
    row, column, moment = 0.0, 0.0, 0.0
    for t, gradient in enumerate(gradients, 1):
        band, details = haar.forward(gradient, level)
        decay = 1 - t**-0.8
        square = band * band + 1e-30
        row = decay * row + (1 - decay) * square.mean(1)
        column = decay * column + (1 - decay) * square.mean(0)
        update = band / torch.sqrt(torch.outer(row, column) / row.mean())
        clip = max(1.0, float(update.square().mean().sqrt()))
        moment = 0.9 * moment + 0.1 * lr * update / clip
        weight = weight - haar.inverse(moment, [lr * d / clip for d in details], 16)
    got = nn.Parameter(torch.zeros_like(weight))
    optimizer = GWT([got], lr=lr, scale=1.0, level=level, rule="adafactor")
    for gradient in gradients:
        got.grad = gradient
        optimizer.step()
    torch.testing.assert_close(got.detach(), weight, rtol=1e-10, atol=1e-12)


def test_adam_mini_shares_one_second_moment_a_row() -> None:
    gradient = draw(5, 12, seed=1)
    got = stepped([gradient], level=0, rule="adam_mini", norm_growth_limit=None, eps=0.0)
    expected = -gradient / gradient.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (10, 10)])
def test_muon_orthogonalises_the_whole_update(shape) -> None:
    got = stepped([draw(*shape, seed=3)], level=1, rule="muon")
    values = torch.linalg.svdvals(got) / max(1.0, shape[0] / shape[1]) ** 0.5
    # five Newton-Schulz steps of these coefficients send singular values into about 0.7 to 1.2;
    # the smallest of a square matrix may lag
    assert float(values.max()) < 1.25
    assert float(values.median()) > 0.6


def test_muon_at_level_0_equals_torchs() -> None:
    gradients = [draw(12, 30, seed=seed).float() for seed in range(4)]
    ours, theirs = (nn.Parameter(torch.zeros(12, 30)) for _ in range(2))
    first = GWT([ours], lr=0.02, scale=1.0, level=0, rule="muon", betas=(0.95, 0.0))
    second = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.0, nesterov=True)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
    # theirs iterates in bfloat16: some percent of each step
    difference = (ours - theirs).norm() / theirs.norm()
    assert float(difference.detach()) < 0.03


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_adafactor_clips_at_unit_rms(rows, columns, seed) -> None:
    update = 3 * draw(rows, columns, seed=seed)
    clipped = update / adafactor.excess(update)
    assert float(clipped.square().mean().sqrt()) <= 1 + 1e-12


@pytest.mark.parametrize("rule", ["adam", "adafactor", "adam_mini", "muon"])
def test_every_rule_lowers_a_loss(rule) -> None:
    target = draw(24, 32, seed=5).float()
    weight = nn.Parameter(torch.zeros(24, 32))
    safe = {"details": "safe"} if rule in ("adam", "adam_mini") else {}
    optimizer = GWT([weight], lr=0.05, scale=1.0, level=1, rule=rule, **safe)
    for _ in range(80):
        optimizer.zero_grad()
        loss = (weight - target).square().mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5 * float(target.square().mean())


def test_muon_of_a_zero_update_is_zero() -> None:
    assert not muon.orthogonalise(torch.zeros(4, 6)).any()


# ---- the largest coefficients --------------------------------------------------------------


def test_largest_with_every_coefficient_is_adam_in_the_wavelet_basis() -> None:
    gradients = [draw(4, 16, seed=seed) for seed in range(5)]
    got = stepped(
        gradients, level=2, selection="largest", share=1.0, norm_growth_limit=None, eps=0.0
    )
    weight = nn.Parameter(torch.zeros(4, 16, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr=1.0, eps=0.0)
    for gradient in gradients:
        band, details = haar.forward(gradient, 2)
        weight.grad = torch.cat((band, *details), dim=1)
        adam.step()
    bands = weight.detach().split([4, 4, 8], dim=1)
    torch.testing.assert_close(got, haar.inverse(bands[0], list(bands[1:]), 16))


def test_largest_keeps_its_share_and_chooses_anew() -> None:
    weight = nn.Parameter(torch.zeros(8, 16, dtype=torch.float64))
    optimizer = GWT([weight], level=2, selection="largest", share=0.1, selection_interval=3)
    chosen = []
    for seed in range(6):
        weight.grad = draw(8, 16, seed=seed)
        optimizer.step()
        band, details = haar.forward(weight.grad, 2)
        state = optimizer.state[weight]
        chosen.append(state["positions"].tolist())
        if seed % 3 == 0:
            largest = torch.cat((band, *details), dim=1).flatten().abs().topk(13).indices
            assert sorted(largest.tolist()) == chosen[-1]
    assert len(chosen[0]) == math.ceil(0.1 * 8 * 16)
    assert chosen[0] == chosen[2] != chosen[3] == chosen[5]
    assert state["positions"].dtype is torch.int32


def test_largest_is_adams_alone() -> None:
    with pytest.raises(UnsupportedCombination, match="largest"):
        GWT([nn.Parameter(torch.zeros(4, 4))], selection="largest", rule="muon")
