"""The loop around the optimizer is torch's own: closures, groups, schedulers, clipping, ties."""

import pytest
import torch
from torch import nn

from tests.conformance.subjects import Net, Training, inputs, moved, same

law = pytest.mark.law


@law("closure")
def test_closure_runs_with_autograd_and_returns_the_loss(subject) -> None:
    plain, closed = subject.start(), subject.start()
    for step in range(3):
        expected = plain.loss(step)
        plain.run(range(step, step + 1))

        def closure(step: int = step) -> torch.Tensor:
            assert torch.is_grad_enabled()
            loss = closed.loss(step)
            loss.backward()
            return loss

        assert torch.equal(closed.optimizer.step(closure), expected)
        closed.optimizer.zero_grad(set_to_none=False)  # either way
        assert not any(p.grad.any() for p in closed.model.parameters() if p.grad is not None)
    assert same(plain.values(), closed.values())


@law("groups")
def test_added_groups_have_their_own_rate_and_first_step(subject) -> None:
    whole, alone = subject.start(), subject.start(lr=0.02)
    whole.run(range(2))
    late = Net()
    still = Net()
    for extra, rate in ((late, 0.02), (still, 0.0)):
        for group in subject.method.groups(extra):
            whole.optimizer.add_param_group({**group, "lr": rate})
    before = {name: p.detach().clone() for name, p in late.named_parameters()}
    for model in (whole.model, late, still):
        model(inputs(7)).square().mean().backward()
    whole.optimizer.step()
    alone.run(range(7, 8))
    after = {name: p.detach().clone() for name, p in late.named_parameters()}
    assert same(after, alone.values())
    assert moved(before, after) == set(before)
    assert all(map(torch.equal, still.parameters(), Net().parameters()))


@law("groups")
@pytest.mark.selective
def test_untreated_groups_get_adam_at_the_full_rate(subject) -> None:
    model, twin = Net().double(), Net().double()
    plain = ("tall.weight", "norm.weight", "scale")
    params = list(model.named_parameters())
    groups = [
        {"params": [(n, p) for n, p in params if n not in plain and p.ndim > 1], "treated": True},
        {"params": [(n, p) for n, p in params if n in plain or p.ndim < 2], "treated": False},
    ]
    known = subject.method.arguments()
    wanted = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 0.0, "adam_scale": 1.0}
    arguments = {key: value for key, value in wanted.items() if key in known}
    optimizer = subject.method.load()(groups, **{**subject.arguments, **arguments})
    adam = torch.optim.Adam(twin.parameters(), lr=0.1, eps=0.0)
    for step in range(3):
        model(inputs(step, torch.float64)).square().mean().backward()
        for param, copy in zip(model.parameters(), twin.parameters(), strict=True):
            copy.grad = param.grad.clone()
        optimizer.step()
        adam.step()
        optimizer.zero_grad()
    theirs = dict(twin.named_parameters())
    for name in plain:
        torch.testing.assert_close(dict(params)[name], theirs[name], rtol=1e-9, atol=1e-12)
    assert not torch.equal(model.wide.weight, twin.wide.weight)


@law("groups")
@pytest.mark.selective
def test_groups_serve_several_optimizers_and_unnamed_parameters_get_a_place(subject) -> None:
    model = Net()
    groups = subject.method.groups(model)
    keys = [set(group) for group in groups]
    for _ in range(2):
        optimizer = subject.method.load()(groups, **subject.arguments)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p in model.parameters()}
    assert [set(group) for group in groups] == keys
    matrices = [nn.Parameter(torch.ones(8, 8)) for _ in range(2)]
    unnamed = subject.method.load()([{"params": [m]} for m in matrices], **subject.arguments)
    assert unnamed.name_of(matrices[1]) == "group1.param0"


@law("schedulers")
@pytest.mark.parametrize("name", ["step", "cosine", "one cycle"])
def test_the_rate_that_a_scheduler_sets_is_applied(subject, name) -> None:
    scheduled, manual = subject.start(lr=0.05), subject.start(lr=0.05)
    optimizer, other = scheduled.optimizer, manual.optimizer
    lr_scheduler = torch.optim.lr_scheduler
    momentum = "betas" in optimizer.defaults or "momentum" in optimizer.defaults
    schedule = {
        "step": lambda: lr_scheduler.StepLR(optimizer, 1, 0.5),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=1e-3),
        "one cycle": lambda: lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.05, total_steps=8, cycle_momentum=momentum
        ),
    }[name]()
    rates = set()
    for step in range(4):
        for group, copy in zip(optimizer.param_groups, other.param_groups, strict=True):
            copy.update({key: group[key] for key in ("lr", "betas", "momentum") if key in group})
        rate = optimizer.param_groups[0]["lr"]
        scheduled.run(range(step, step + 1))
        manual.run(range(step, step + 1))
        assert optimizer.param_groups[0]["lr"] == rate  # step() never rewrites it
        rates.add(rate)
        schedule.step()
    assert len(rates) == 4
    assert same(scheduled.values(), manual.values())


@law("schedulers")
def test_rate_zero_moves_nothing(subject) -> None:
    training = subject.start(lr=0.0, weight_decay=0.1)
    before = training.values()
    training.run(range(2))
    assert same(before, training.values())
    assert training.states() or not subject.start().run(range(1)).states()


@law("maximize")
@pytest.mark.variants
def test_maximize_follows_the_opposite_gradient(subject) -> None:
    ascent, descent = subject.start(maximize=True), subject.start()
    for step in range(5):
        ascent.loss(step).backward()
        (-descent.loss(step)).backward()
        for training in (ascent, descent):
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert same(ascent.values(), descent.values())


@law("frozen")
def test_frozen_parameters_thaw_and_unused_ones_wait(subject) -> None:
    model = Net((*Net.PARTS, "unused"))
    model.tall.requires_grad_(False)
    training = subject.start(model)
    model.tall.requires_grad_(False)  # adapters are trained on frozen weights, too
    before = training.values()
    training.run(range(3))
    still = {name for name in before if name.startswith(("tall", "unused"))}
    assert moved(before, training.values()) == training.trained() - still
    assert training.states().keys().isdisjoint(still)
    model.requires_grad_(False)
    model.tall.requires_grad_(True)
    twin = Training(subject, Net((*Net.PARTS, "unused")), {})
    twin.model.load_state_dict(model.state_dict())
    twin.model.requires_grad_(False)
    twin.model.tall.requires_grad_(True)
    for group, its in zip(
        training.optimizer.param_groups, twin.optimizer.param_groups, strict=True
    ):
        its.update({key: group[key] for key in ("updates",) if key in group})  # ReLoRA's schedule
    for each in (training, twin):  # thawed late or there from the start: its step 1 is now
        each.run(range(7, 9))
    assert same(training.values(), twin.values())
    expected = {training.mover(name) for name in ("tall.weight", "tall.bias")}
    assert moved(before, training.values()) >= expected


class Tied(nn.Module):
    """Two layers, one weight."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2 if tied else 1))
        if tied:
            self.layers[1].weight = self.layers[0].weight
        with torch.no_grad():
            self.layers[0].weight.copy_(torch.randn(8, 8, generator=torch.manual_seed(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[-1](self.layers[0](x))


@law("tied")
def test_tied_weights_have_one_state_and_one_update(subject) -> None:
    tied, once = subject.start(Tied()), subject.start(Tied(tied=False))
    x = torch.randn(4, 8, generator=torch.manual_seed(2))
    for training in (tied, once):
        for _ in range(2):
            training.model(x).square().mean().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert len(list(tied.optimizer.param_groups[0]["params"])) == len(tied.values())
    assert same(tied.values(), once.values())
    assert torch.equal(tied.model.layers[0].weight, tied.model.layers[1].weight)


@law("micro_batches")
def test_micro_batches_equal_one_batch(subject) -> None:
    whole = subject.start()
    parts = subject.start(**subject.method.in_loop(micro_batches=2))
    for step in range(4):
        whole.run(range(step, step + 1))
        for _ in range(2):  # a half and a half are the whole, to the bit
            (parts.loss(step) / 2).backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
    assert same(whole.values(), parts.values())


@law("clipping")
def test_clip_grad_norm_clips(subject) -> None:
    clipped, scaled = subject.start(), subject.start()
    for step in range(3):
        clipped.loss(step).backward()
        scaled.loss(step).backward()
        norm = torch.nn.utils.clip_grad_norm_(clipped.model.parameters(), 1e-3)
        assert norm > 1e-3
        for param in scaled.model.parameters():
            if param.grad is not None:
                param.grad.mul_(1e-3 / (norm + 1e-6))  # torch's formula
        for training in (clipped, scaled):
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert same(clipped.values(), scaled.values())
    # three signs of a momentum (Lion) may be the same, the momentum is not
    assert not same(clipped.everything(), subject.start().run(range(3)).everything())


@law("compile")
def test_a_compiled_model_trains_alike(subject) -> None:
    plain, compiled = subject.start(), subject.start()
    compiled.model = torch.compile(compiled.model, backend="eager")
    for step in range(3):
        plain.run(range(step, step + 1))
        compiled.run(range(step, step + 1))
    assert all(map(torch.equal, plain.model.parameters(), compiled.model.parameters()))
