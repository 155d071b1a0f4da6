"""What the engine refuses: each with its reason, before or instead of a wrong number."""

import gc

import pytest
import torch
from torch import distributed, nn

import memopt
from memopt.errors import MiniBatchError, NonFiniteGradientError

from . import toys

TIMED = pytest.mark.parametrize("name", ["adama", *toys.IN_BACKWARD])


@TIMED
def test_ddp_wrapper_is_refused_before_any_change(name, tmp_path) -> None:  # B10
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model, twin = toys.net(), toys.net()
        optimizer = toys.build(name, model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        with pytest.raises(memopt.UnsupportedCombination, match="reduce_gradients"):
            toys.loss_of(wrapped, toys.batches(1)[0]).backward()
        assert toys.same(model, twin)
        assert not optimizer.state
        del wrapped
        gc.collect()
    finally:
        distributed.destroy_process_group()


@TIMED
def test_grad_scaler_is_refused_before_any_change(name) -> None:  # B14
    model, twin = toys.net(), toys.net()
    optimizer = toys.build(name, model)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(memopt.UnsupportedCombination, match="bfloat16"):
        scaler.scale(toys.loss_of(model, toys.batches(1)[0])).backward()
    assert toys.same(model, twin)
    assert not optimizer.state


@TIMED
def test_grad_scaler_in_use_before_is_refused_at_its_step(name) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))  # by another model, as far as the optimizer can know
    model = toys.net()
    optimizer = toys.build(name, model)
    scaler.scale(toys.loss_of(model, toys.batches(1)[0])).backward()
    with pytest.raises(memopt.UnsupportedCombination, match="bfloat16"):
        scaler.step(optimizer)


def test_global_norm_in_one_pass_is_refused_before_any_change() -> None:
    model, twin = toys.net(), toys.net()
    optimizer = toys.build("lomo", model, max_norm=1.0)
    with pytest.raises(memopt.UnsupportedCombination, match="runs backward twice"):
        toys.loss_of(model, toys.batches(1)[0]).backward()
    assert toys.same(model, twin)
    assert not optimizer.state


@TIMED
def test_calls_in_the_middle_of_a_mini_batch(name) -> None:
    model = toys.net()
    optimizer = toys.build(name, model)
    toys.loss_of(model, toys.batches(1)[0]).backward()
    for call in (optimizer.state_dict, optimizer.zero_grad, optimizer.timing.remove):
        with pytest.raises(MiniBatchError, match="in the middle of a mini-batch"):
            call()
    optimizer.step()
    optimizer.state_dict()
    optimizer.zero_grad()


def test_zero_grad_discards_held_micro_batches() -> None:
    plain, model = toys.net(), toys.net()
    optimizer = toys.build("lomo", model, micro_batches=2)
    toys.loss_of(model, toys.batches(1, seed=9)[0]).backward()
    optimizer.zero_grad()
    toys.train(plain, toys.ordinary("lomo", plain), toys.batches(2), 2)
    toys.train(model, optimizer, toys.batches(2), 2)
    assert toys.same(plain, model)


@TIMED
def test_one_timing_per_optimizer_and_parameter(name) -> None:
    model = toys.net()
    optimizer = toys.build(name, model)
    with pytest.raises(memopt.UnsupportedCombination, match="already has a timing"):
        memopt.update_in_backward(optimizer)
    with pytest.raises(memopt.UnsupportedCombination, match=r"'\w+.*' is already consumed"):
        toys.build(name, model)


@TIMED
def test_dropped_optimizer_leaves_no_hooks(name) -> None:
    model = toys.net()
    optimizer = toys.build(name, model)
    toys.train(model, optimizer, toys.batches(1))
    del optimizer
    toys.loss_of(model, toys.batches(1)[0]).backward()
    assert all(param.grad is not None for param in model.parameters())
    model.zero_grad()
    toys.build(name, model)


@TIMED
def test_gradient_written_by_someone_else(name) -> None:
    """After backward nothing may be left of a gradient that was used (a wrapper wrote it?)."""
    model = toys.net()
    optimizer = toys.build(name, model)
    toys.loss_of(model, toys.batches(1)[0]).backward()
    model.scale.grad = torch.tensor(1.0)
    with pytest.raises(MiniBatchError, match="'scale' has a gradient"):
        optimizer.step()


@TIMED
def test_nan_gradient_names_the_parameter(name) -> None:
    model = toys.net()
    optimizer = toys.build(name, model)
    hook = model.blocks[1].weight.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(NonFiniteGradientError, match=r"blocks\.1\.weight"):
        toys.loss_of(model, toys.batches(1)[0]).backward()
    hook.remove()
    assert optimizer.state[model.blocks[1].weight].get("step", 0) == 0


@TIMED
def test_nan_gradient_skipped(name) -> None:
    model = toys.net()
    optimizer = toys.build(name, model, nonfinite="skip")
    before = model.blocks[1].weight.clone()
    hook = model.blocks[1].weight.register_hook(lambda grad: grad * float("nan"))
    toys.train(model, optimizer, toys.batches(1))
    hook.remove()
    assert torch.equal(model.blocks[1].weight, before)
    assert optimizer.param_groups[0]["skipped_steps"] == 1
    toys.train(model, optimizer, toys.batches(2))
    assert all(param.isfinite().all() for param in model.parameters())
    assert not torch.equal(model.blocks[1].weight, before)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_nan_gradient_with_exact_clipping_changes_nothing(policy) -> None:
    """The first of the two backward passes finds it."""
    model, twin = toys.net(), toys.net()
    optimizer = toys.build("lomo", model, max_norm=1.0, nonfinite=policy)
    hook = model.blocks[0].weight.register_hook(lambda grad: grad * float("nan"))

    def backward() -> None:
        optimizer.timing.backward(lambda: toys.loss_of(model, toys.batches(1)[0]))

    if policy == "raise":
        with pytest.raises(NonFiniteGradientError, match=r"blocks\.0\.weight"):
            backward()
        optimizer.zero_grad()
    else:
        backward()
        optimizer.step()
        assert optimizer.param_groups[0]["skipped_steps"] == 1
    assert toys.same(model, twin)
    hook.remove()
    backward()
    optimizer.step()
    assert not toys.same(model, twin)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda p: memopt.AdamW([nn.Parameter(q.bfloat16()) for q in p]), "round away"),
        (lambda p: memopt.AdamW(p, capturable=True), "step count on the device"),
        (lambda p: torch.optim.Adam(p), "not an optimizer of memopt"),
        (lambda p: memopt.LOMO(p, lr=0.1), "updates in backward.* micro_batches=k"),
        (lambda p: memopt.AdaLomo(p), "updates in backward.* micro_batches=k"),
        (lambda p: memopt.GaLore(p, rank=2, storage="bfloat16"), "rounds away"),
        (lambda p: memopt.GWT(p, rule="adafactor"), "only rule='adam'"),
        (lambda p: memopt.GWT(p, selection="largest"), "only rule='adam'"),
        (lambda p: memopt.GWT(p, storage="8bit"), "rounds away"),
    ],
)
def test_accumulation_needs_a_rule_that_allows_it(make, reason) -> None:
    with pytest.raises(memopt.UnsupportedCombination, match=reason):
        memopt.accumulate_in_backward(make(toys.net().parameters()))


@TIMED
def test_sparse_gradient_is_refused(name) -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = memopt.create(name, embedding, targets=lambda *_: True, lr=0.1)
    with pytest.raises(memopt.UnsupportedCombination, match="'weight' has a sparse gradient"):
        embedding(torch.tensor([1])).sum().backward()
    assert optimizer.timing is not None
