"""8-bit Adam: one step after the paper, what stays in float32, and that zero stays zero."""

import io
import math

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.states import blockwise


def trained(shape: tuple[int, ...], grads: list[Tensor], **arguments) -> tuple[Tensor, dict]:
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = memopt.Adam8bit([weight], **{"lr": 0.1, **arguments})
    for grad in grads:
        weight.grad = grad
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


def nearest(value: Tensor, signed: bool) -> Tensor:
    """Each block of 256 scaled to magnitude 1 and rounded to the nearest code value."""
    codes = blockwise.code_values(signed)
    blocks = value.view(-1, 256)
    scale = blocks.abs().amax(1, keepdim=True)
    index = (blocks[..., None] / scale[..., None] - codes).abs().argmin(-1)
    if not signed:  # memopt's rule: a positive second moment never rounds to zero
        index = torch.where(blocks > 0, index.clamp_min(1), index)
    return (codes[index] * scale).view_as(value)


def test_two_steps_written_out() -> None:
    draw = torch.Generator().manual_seed(0)
    grads = [torch.randn(16, 256, generator=draw) for _ in range(2)]
    weight, state = trained((16, 256), grads)
    m = v = expected = torch.zeros(16, 256)
    for t, grad in enumerate(grads, start=1):
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        mhat, vhat = m / (1 - 0.9**t), v / (1 - 0.999**t)
        expected = expected - 0.1 * mhat / (vhat.sqrt() + 1e-8)  # before the moments are rounded
        m = nearest(m, True)
        v = nearest(v, False)
    torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        blockwise.dequantize(state["exp_avg"], state["exp_avg_absmax"]), m, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("numel", [4095, 4096, 5000])
def test_bytes_and_the_smallest_tensor_in_codes(numel) -> None:
    _, state = trained((numel,), [torch.randn(numel)])
    sizes = {key: value.nbytes for key, value in state.items() if key != "step"}
    scales = 4 * math.ceil(numel / 256)
    expected = {"exp_avg": 4 * numel, "exp_avg_sq": 4 * numel}
    if numel >= 4096:
        expected = {"exp_avg": numel, "exp_avg_sq": numel}
        expected |= {"exp_avg_absmax": scales, "exp_avg_sq_absmax": scales}
        assert (state["exp_avg"].dtype, state["exp_avg_sq"].dtype) == (torch.int8, torch.uint8)
    assert sizes == expected


def test_small_tensors_are_adam() -> None:
    grads = [torch.randn(63, 65) for _ in range(20)]
    weight, _ = trained((63, 65), grads)
    twin = nn.Parameter(torch.zeros(63, 65))
    optimizer = torch.optim.Adam([twin], lr=0.1)
    for grad in grads:
        twin.grad = grad
        optimizer.step()
    torch.testing.assert_close(weight, twin.detach(), rtol=1e-5, atol=1e-5)


def test_unused_rows_of_an_embedding_never_move() -> None:
    # unsloth-zoo, pull 962: a first moment not exactly zero, over eps, creeps
    embedding = nn.Embedding(64, 128)
    before = embedding.weight.detach().clone()
    optimizer = memopt.create("adam8bit", embedding, lr=1e-3)
    for step in range(500):
        optimizer.zero_grad()
        # used and unused rows share blocks of 256
        embedding(torch.arange(step % 5, 64, 2) // 4 * 4).square().sum().backward()
        optimizer.step()
    moved = (embedding.weight.detach() != before).any(dim=1)
    assert moved[0::4].all() and not moved[1::4].any() and not moved[2::4].any()
    assert optimizer.state[embedding.weight]["exp_avg"].dtype is torch.int8


def test_no_element_with_a_gradient_has_a_second_moment_of_zero() -> None:
    # 1e-6 beside 1: v rounds to nothing, and m / eps would be the step
    grad = torch.full((4096,), 1e-6)
    grad[::256] = 1.0
    weight, _ = trained((4096,), [grad] * 5, lr=1e-3)
    assert float(weight.abs().max()) < 5 * 2e-3


def test_embeddings_in_float32_as_the_paper_keeps_them() -> None:
    model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100))
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    rest = [p for p in model.parameters() if all(p is not table for table in tables)]
    groups = [{"params": rest}, {"params": tables, "storage": "float32"}]
    optimizer = memopt.Adam8bit(groups, lr=1e-3)
    model(torch.arange(8)).square().sum().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["exp_avg"].dtype is torch.float32
    assert optimizer.state[model[1].weight]["exp_avg"].dtype is torch.int8


def test_one_step_counter() -> None:
    # a counter ticked twice would end at 0.72876 (unsloth, pull 10842)
    weight, _ = trained((4096,), [torch.ones(4096)] * 3)
    torch.testing.assert_close(weight, torch.full((4096,), -0.3), rtol=1e-5, atol=1e-6)


def test_checkpoint_holds_the_codes() -> None:
    draw = torch.Generator().manual_seed(0)
    grads = [torch.randn(40, 128, generator=draw) for _ in range(8)]
    whole, _ = trained((40, 128), grads)
    weight = nn.Parameter(torch.zeros(40, 128))
    file = io.BytesIO()
    for part in (grads[:3], grads[3:]):
        optimizer = memopt.Adam8bit([weight], lr=0.1)
        if file.tell():
            file.seek(0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        for grad in part:
            weight.grad = grad
            optimizer.step()
        torch.save(optimizer.state_dict(), file)
    assert torch.equal(weight.detach(), whole)


def test_refusals() -> None:
    weight = nn.Parameter(torch.zeros(4))
    with pytest.raises(memopt.UnsupportedCombination, match="float64"):
        memopt.Adam8bit([nn.Parameter(torch.zeros(4, dtype=torch.float64))])
    with pytest.raises(ValueError, match="storage '4bit'. Did you mean '8bit'"):
        memopt.Adam8bit([weight], storage="4bit")
    with pytest.raises(memopt.UnsupportedCombination, match="rounded to the moments' code"):
        memopt.accumulate_in_backward(memopt.Adam8bit([weight]))
    with pytest.raises(ValueError, match="not of Adam8bit"):
        memopt.Adam8bit([weight]).load_state_dict(memopt.AdamA([weight]).state_dict())
