"""The timing engine over generated shapes, dtypes, micro-batches and patterns of use."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import memopt

METHODS = st.sampled_from(["lomo", "adalomo", "adama"])
SHAPES = st.lists(
    st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple), min_size=1, max_size=4
)


def build(name: str, params: list[nn.Parameter], **arguments) -> torch.optim.Optimizer:
    factory = {"lomo": memopt.LOMO, "adalomo": memopt.AdaLomo, "adama": memopt.AdamA}[name]
    return factory(params, lr=0.01, weight_decay=0.1, **arguments)


def make(shapes: list[tuple[int, ...]], dtype: torch.dtype, transposed: bool) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    params = []
    for shape in shapes:
        value = torch.randn(shape, generator=draw).to(dtype)
        if transposed and value.ndim >= 2:
            value = value.mT.contiguous().mT
        params.append(nn.Parameter(value))
    return params


@settings(max_examples=40)
@given(
    name=METHODS,
    shapes=SHAPES,
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    transposed=st.booleans(),
    pattern=st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_in_backward_equals_step(name, shapes, dtype, transposed, pattern) -> None:
    """Whatever is used when: the same bits as gradients held for step(), where that is defined.

    ``pattern``: per mini-batch and micro-batch, a bit mask of the parameters used. Micro-batches
    of AdamA differ from held gradients by design, so it gets one a mini-batch.
    """
    if name == "adama":
        pattern = [micro[:1] for micro in pattern]
    most = max(len(micro) for micro in pattern)
    params, twins = make(shapes, dtype, transposed), make(shapes, dtype, transposed)
    timed = build(name, params, micro_batches=most)
    plain = build(name, twins)
    plain.timing.remove()
    for micro in pattern:
        for mask in micro:
            for each in (params, twins):
                used = [p for i, p in enumerate(each) if mask >> i & 1]
                if used:
                    sum((p.double() ** 2).sum() for p in used).backward()
        for optimizer in (timed, plain):
            optimizer.step()
            optimizer.zero_grad()
    for param, twin in zip(params, twins, strict=True):
        assert param.dtype is dtype
        assert param.isfinite().all()
        assert torch.equal(param, twin)
        ours, theirs = timed.state.get(param, {}), plain.state.get(twin, {})
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@settings(max_examples=30)
@given(name=METHODS, shapes=SHAPES)
def test_state_is_what_the_optimizer_declares(name, shapes) -> None:
    params = make(shapes, torch.float32, False)
    optimizer = build(name, params)
    sum((p**2).sum() for p in params).backward()
    optimizer.step()
    for param in params:
        kept = {k: v.shape for k, v in optimizer.state[param].items() if k != "step"}
        shape = tuple(param.shape)
        if name == "lomo":
            expected: dict = {}
        elif name == "adama":
            expected = {"exp_avg": shape, "exp_avg_sq": shape}
        elif len(shape) < 2:
            expected = {"exp_avg_sq": shape}
        else:
            expected = {
                "exp_avg_sq_row": shape[:-1],
                "exp_avg_sq_col": (*shape[:-2], shape[-1]),
            }
        assert kept == expected


@settings(max_examples=30)
@given(
    grads=st.lists(
        st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=2), min_size=1, max_size=5
    )
)
def test_adama_lies_between_adam_over_n_and_adam(grads) -> None:
    """v of Adam <= N v of AdamA (Cauchy-Schwarz), and m is the same, for any micro-gradients."""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = memopt.AdamA([weight], lr=0.1)
    values = torch.tensor(grads, dtype=torch.float64)
    for grad in values:
        (weight * grad).sum().backward()
    optimizer.step()
    state, total = optimizer.state[weight], values.sum(0)
    torch.testing.assert_close(state["exp_avg"], 0.1 * total, rtol=1e-9, atol=1e-12)
    assert (0.001 * total**2 <= len(grads) * state["exp_avg_sq"] * (1 + 1e-9) + 1e-300).all()
