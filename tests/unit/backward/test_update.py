"""update_in_backward: the same numbers as step(), for every method, whatever the loop."""

import math
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR

import memopt
from memopt.errors import MiniBatchError

from . import toys

EACH = pytest.mark.parametrize("name", toys.METHODS)


def fused(name, model, micro_batches=1, **arguments):
    optimizer = toys.ordinary(name, model, **arguments)
    memopt.update_in_backward(optimizer, micro_batches)
    return optimizer


@EACH
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_equals_the_ordinary_optimizer_bit_for_bit(name, micro_batches) -> None:
    plain, model = toys.net(), toys.net()
    toys.train(plain, toys.ordinary(name, plain), toys.batches(7), micro_batches)
    optimizer = fused(name, model, micro_batches)
    toys.train(model, optimizer, toys.batches(7), micro_batches)
    assert toys.same(plain, model)
    assert toys.steps_of(optimizer) == {7}  # B01: one tick a mini-batch


@pytest.mark.parametrize("name", toys.IN_BACKWARD)
def test_methods_of_this_timing_have_it_from_the_start(name) -> None:
    plain, model = toys.net(), toys.net()
    toys.train(plain, toys.ordinary(name, plain), toys.batches(5), 2)
    toys.train(model, toys.build(name, model, micro_batches=2), toys.batches(5), 2)
    assert toys.same(plain, model)


@EACH
def test_counters_advance_by_one_after_a_resume(name) -> None:  # B02
    model = toys.net()
    optimizer = toys.ordinary(name, model)
    toys.train(model, optimizer, toys.batches(1))
    resumed = fused(name, model, 4)
    resumed.load_state_dict(optimizer.state_dict())
    toys.train(model, resumed, toys.batches(1), 4)
    assert toys.steps_of(resumed) == {2}


@EACH
def test_gradients_are_gone_after_backward(name) -> None:
    model = toys.net()
    optimizer = fused(name, model)
    toys.loss_of(model, toys.batches(1)[0]).backward()
    assert all(param.grad is None for param in model.parameters())
    optimizer.step()


SCHEDULES = {
    "steps": lambda opt: StepLR(opt, 2, 0.5),
    "warm-up and cosine": lambda opt: LambdaLR(
        opt, lambda t: min(t / 4, 0.5 * (1 + math.cos(math.pi * t / 12)))
    ),
}


@pytest.mark.parametrize("name", ["adamw", "gwt", *toys.IN_BACKWARD])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_rate_is_the_group_s_at_that_moment(name, schedule) -> None:  # B04, B05, B07, B13
    plain, model = toys.net(), toys.net()
    ordinary, optimizer = toys.ordinary(name, plain), fused(name, model, 2)
    used = []
    update = optimizer.step_parameter
    optimizer.step_parameter = lambda p, g, group: (used.append(group["lr"]), update(p, g, group))
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where a scheduler finds step() uncalled
        clock = schedule(ordinary)
        toys.train(plain, ordinary, toys.batches(9), 2, clock.step)
        clock = schedule(optimizer)

        def tick() -> None:
            shown.append(clock.get_last_lr()[0])
            clock.step()

        toys.train(model, optimizer, toys.batches(9), 2, tick)
    assert toys.same(plain, model)
    parameters = len(list(model.parameters()))
    assert used == [rate for rate in shown for _ in range(parameters)]


@EACH
def test_norm_is_the_one_that_step_would_see(name) -> None:  # B16
    plain, model = toys.net(), toys.net()
    data = toys.batches(1)[0]
    for part in data.chunk(2):
        (toys.loss_of(plain, part) / 2).backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])
    optimizer = fused(name, model, 2)
    toys.train(model, optimizer, [data], 2)
    assert optimizer.timing.last_grad_norm == pytest.approx(float(expected), rel=1e-6)


@EACH
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("max_norm", [0.1, 100.0])
def test_exact_norm_clipping(name, micro_batches, max_norm) -> None:
    plain, model = toys.net(), toys.net()
    ordinary, optimizer = toys.ordinary(name, plain), toys.ordinary(name, model)
    handle = memopt.update_in_backward(optimizer, micro_batches, max_norm)
    for tokens in toys.batches(5, rows=6):
        for part in tokens.chunk(micro_batches):
            (toys.loss_of(plain, part) / micro_batches).backward()
            loss = handle.backward(lambda part=part: toys.loss_of(model, part) / micro_batches)
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
        for each in (ordinary, optimizer):
            each.step()
            each.zero_grad()
        assert handle.last_grad_norm == pytest.approx(float(expected), rel=1e-5)
        assert not loss.requires_grad
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        # the norm is summed in another order: one float32 rounding of the factor a step
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_two_passes_hold_one_gradient_at_a_time() -> None:
    model = toys.net()
    optimizer = toys.build("lomo", model, max_norm=1.0)
    alive = []
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(
            lambda _: alive.append(sum(p.grad is not None for p in model.parameters()))
        )
    optimizer.timing.backward(lambda: toys.loss_of(model, toys.batches(1)[0]))
    assert len(alive) == 2 * len(list(model.parameters()))
    assert max(alive) == 0  # seen by a hook behind ours


def test_value_clipping() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = memopt.LOMO([weight], lr=0.5, clip_value=1.0)
    (weight @ torch.tensor([1.3, 0.8])).backward()  # the paper's example
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.5, -0.4]))


def test_closure_runs_with_autograd_and_returns_the_loss() -> None:  # H10
    for name in toys.METHODS:
        plain, model = toys.net(), toys.net()
        tokens = toys.batches(1)[0]
        toys.train(plain, toys.ordinary(name, plain), [tokens])
        optimizer = fused(name, model)

        def closure(model=model, optimizer=optimizer, tokens=tokens):
            optimizer.zero_grad()
            loss = toys.loss_of(model, tokens)
            loss.backward()
            return loss

        expected = toys.loss_of(model, tokens).detach()
        assert optimizer.step(closure).detach() == expected
        assert toys.same(plain, model)


@EACH
def test_unused_and_late_parameters(name) -> None:
    """A branch that fires in some micro-batches only is updated once, by step()."""
    plain, model = toys.net(), toys.net()
    ordinary, optimizer = toys.ordinary(name, plain), fused(name, model, 2)
    for use in ((False, True), (False, False), (True, False)):
        for part, used in zip(toys.batches(1)[0].chunk(2), use, strict=True):
            for each in (plain, model):
                each.use_branch = used
                (toys.loss_of(each, part) / 2).backward()
        for each in (ordinary, optimizer):
            each.step()
            each.zero_grad()
    assert toys.same(plain, model)
    assert optimizer.state[model.branch.weight]["step"] == 2


@EACH
def test_a_short_last_mini_batch_is_updated_by_step(name) -> None:
    plain, model = toys.net(), toys.net()
    toys.train(plain, toys.ordinary(name, plain), toys.batches(2, rows=4), 2)
    toys.train(model, fused(name, model, micro_batches=4), toys.batches(2, rows=4), 2)
    assert toys.same(plain, model)


@EACH
def test_frozen_parameters_thaw(name) -> None:
    plain, model = toys.net(), toys.net()
    for each in (plain, model):
        each.blocks[0].weight.requires_grad_(False)
    ordinary, optimizer = toys.ordinary(name, plain), fused(name, model)
    assert not model.blocks[0].weight.requires_grad
    toys.train(plain, ordinary, toys.batches(2))
    toys.train(model, optimizer, toys.batches(2))
    for each in (plain, model):
        each.blocks[0].weight.requires_grad_(True)
    toys.loss_of(model, toys.batches(1)[0]).backward()
    assert model.blocks[0].weight.grad is None  # the hook was there from the start
    optimizer.step()
    toys.train(plain, ordinary, toys.batches(1))
    assert toys.same(plain, model)


@EACH
def test_group_added_later(name) -> None:
    plain, model = toys.net(), toys.net()
    added = {}
    for each, make in ((plain, toys.ordinary), (model, fused)):
        branch = each.branch
        del each.branch  # registered again below: the optimizer is built without it
        optimizer = make(name, each)
        each.branch = branch
        named = [(f"branch.{n}", p) for n, p in branch.named_parameters()]
        optimizer.add_param_group({"params": named, "lr": 0.3, "treated": False})
        toys.train(each, optimizer, toys.batches(3))
        added[each] = optimizer
    assert toys.same(plain, model)
    assert {g["lr"] for g in added[model].param_groups} == {0.02, 0.3}


@pytest.mark.parametrize("name", ["adama", *toys.IN_BACKWARD])
def test_frozen_integer_weights_are_left_alone(name) -> None:
    model = toys.net()
    codes = torch.arange(4, dtype=torch.int8)
    model.codes = torch.nn.Parameter(codes.clone(), requires_grad=False)
    toys.train(model, toys.build(name, model), toys.batches(2))
    assert torch.equal(model.codes, codes)


@pytest.mark.parametrize("factory", [memopt.AdamA, memopt.LOMO, memopt.AdaLomo])
def test_huge_gradients_are_finite(factory) -> None:
    """The screen's norm overflows, the gradient does not."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = factory([weight], lr=1e-30)
    (weight * 1e30).sum().backward()
    optimizer.step()
    assert optimizer.state[weight]["step"] == 1
    assert weight.isfinite().all()


def test_remove_gives_the_ordinary_optimizer_back() -> None:
    for name in toys.METHODS:
        plain, model = toys.net(), toys.net()
        toys.train(plain, toys.ordinary(name, plain), toys.batches(6), 2)
        optimizer = fused(name, model, 2)
        toys.train(model, optimizer, toys.batches(6)[:3], 2)
        optimizer.timing.remove()
        assert optimizer.timing is None
        toys.train(model, optimizer, toys.batches(6)[3:], 2)
        assert toys.same(plain, model)
        memopt.update_in_backward(optimizer).remove()  # and it can be taken again


def test_step_hooks_and_profiler_see_one_step_a_mini_batch() -> None:
    model = toys.net()
    optimizer = fused("gwt", model, 2)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    with torch.profiler.profile() as profiler:
        toys.train(model, optimizer, toys.batches(2), 2)
    assert calls == ["before", "after"] * 2
    names = [event.name for event in profiler.events()]
    assert names.count("Optimizer.step#GWT.step") == 2


def test_loading_a_state_dict_keeps_the_timing() -> None:
    model = toys.net()
    optimizer = fused("adalomo", model)
    toys.train(model, optimizer, toys.batches(1))
    optimizer.load_state_dict(optimizer.state_dict())  # replaces the group dictionaries
    optimizer.param_groups[0]["lr"] = 0.0
    frozen = optimizer.param_groups[0]["params"]
    before = [param.clone() for param in frozen]
    toys.train(model, optimizer, toys.batches(1))
    assert all(torch.equal(p, b) for p, b in zip(frozen, before, strict=True))


def test_stranger_s_optimizer_is_refused() -> None:
    model = toys.net()
    with pytest.raises(memopt.UnsupportedCombination, match="SGD cannot update one parameter"):
        memopt.update_in_backward(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_micro_batches_out_of_range(value) -> None:
    with pytest.raises(ValueError, match="micro_batches must be an integer above zero"):
        toys.build("lomo", toys.net(), micro_batches=value)


def test_max_norm_out_of_range() -> None:
    with pytest.raises(ValueError, match="max_norm must be above zero"):
        toys.build("lomo", toys.net(), max_norm=0.0)


def test_second_backward_after_the_update_is_an_error() -> None:
    model = toys.net()
    optimizer = toys.build("lomo", model)
    data = toys.batches(1)[0]
    toys.loss_of(model, data).backward()
    with pytest.raises(MiniBatchError, match=r"received 2 gradients .* micro_batches=1"):
        toys.loss_of(model, data).backward()
    assert toys.steps_of(optimizer) == {1}
