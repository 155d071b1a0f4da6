"""The exact constant step size: quadratics with known constants, a net against its full Hessian."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import memopt
from memopt.step_size import exact_constant


class Quadratic(nn.Module):
    """``L(w) = 1/2 w^T A w + c`` with w split in two parameters; A by its eigenvalues."""

    def __init__(self, eigenvalues: list[float], offset: float = 0.0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        count = len(eigenvalues)
        basis, _ = torch.linalg.qr(torch.randn(count, count, generator=draw, dtype=torch.float64))
        self.matrix = basis @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ basis.T
        self.offset = offset
        self.first = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.second = nn.Parameter(torch.ones(count - 2, dtype=torch.float64))

    def forward(self, scale: float) -> torch.Tensor:
        w = torch.cat([self.first, self.second])
        return scale * (w @ self.matrix @ w / 2) + self.offset


def call(model: nn.Module, batch: float) -> torch.Tensor:
    return model(batch)


def test_a_quadratic_has_its_closed_form() -> None:
    model = Quadratic([5.0, 2.0, 1.0, 0.5], offset=3.0)
    ones = torch.ones(4, dtype=torch.float64)
    losses = [scale * float(ones @ model.matrix @ ones) / 2 + 3 for scale in (1.0, 0.5, 2.0)]
    found = exact_constant(model, call, [1.0, 0.5, 2.0], 40, tolerance=1e-9)
    assert found.initial_loss == pytest.approx(sum(losses) / 3, rel=1e-12)
    assert found.eigenvalues == (pytest.approx((5.0, 2.5, 10.0), rel=1e-7),)
    assert found.smoothness == pytest.approx(10.0, rel=1e-7)
    expected = math.sqrt(2 * found.initial_loss / (10.0 * 40))
    assert found.step_size == pytest.approx(expected, rel=1e-7)


def test_the_tolerance_bounds_the_error() -> None:
    model = Quadratic([4.0, 1.0, 0.5])
    rough = exact_constant(model, call, [1.0], 10, tolerance=0.1).smoothness
    fine = exact_constant(model, call, [1.0], 10, tolerance=1e-10).smoothness
    # ratio 1/4: the Rayleigh quotient's error falls 16-fold an iteration
    assert abs(fine - 4) < 1e-8 < abs(rough - 4) < 0.4


class Net(nn.Module):
    """Two layers with a buffer, a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1))
        self.frozen = nn.Parameter(torch.ones(()), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen * self.layers(x)


def mse(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def data(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(2)
    new = lambda n: torch.randn(16, n, generator=draw, dtype=torch.float64)  # noqa: E731
    return [(new(3), new(1)) for _ in range(count)]


def full_hessian_eigenvalues(model: nn.Module, batch) -> torch.Tensor:
    names = [name for name, _ in model.layers.named_parameters()]
    shapes = [p.shape for p in model.layers.parameters()]
    flat = torch.cat([p.detach().flatten() for p in model.layers.parameters()])

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        out = torch.func.functional_call(model.layers.eval(), weights, (batch[0],))
        return (out - batch[1]).square().mean()

    return torch.linalg.eigvalsh(torch.func.hessian(loss)(flat))


def test_a_net_against_its_full_hessian_over_fresh_models() -> None:
    batches, made = data(2), []

    def make() -> Net:
        made.append(Net())
        return made[-1]

    state = torch.random.get_rng_state()
    found = exact_constant(make, mse, batches, 100, num_iters=3, tolerance=1e-8, seed=5,
                           max_iterations=2000)  # fmt: skip
    assert torch.equal(torch.random.get_rng_state(), state)
    for model, row in zip(made, found.eigenvalues, strict=True):
        for batch, value in zip(batches, row, strict=True):
            values = full_hessian_eigenvalues(model, batch)
            assert value == pytest.approx(float(values[values.abs().argmax()]), rel=1e-5)
    assert found.smoothness == max(max(row) for row in found.eigenvalues)
    assert len(set(found.eigenvalues)) == 3  # three initialisations
    losses = [float(mse(made[0].eval(), batch).detach()) for batch in batches]
    assert found.initial_loss == pytest.approx(sum(losses) / 2, rel=1e-12)


def test_seeds_make_it_repeatable_and_nothing_is_changed() -> None:
    batches = data(2)
    runs = [exact_constant(Net, mse, batches, 10, num_iters=2, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    model = Net().train()
    before = [param.clone() for param in model.parameters()]
    exact_constant(model, mse, batches, 10)
    assert all(module.training for module in model.modules())  # dropout was off meanwhile
    assert all(param.grad is None for param in model.parameters())
    assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("method", ["adamw", "gwt"])
def test_any_optimizer_takes_the_rate_and_lowers_the_loss(method) -> None:
    torch.manual_seed(0)
    model = Net()
    model.layers[2].p = 0.0
    batches = [(x, x.sum(1, keepdim=True)) for x, _ in data(4)]
    found = exact_constant(model, mse, batches, 200)
    optimizer = memopt.create(method, model, lr=found.step_size)
    for step in range(200):
        mse(model, batches[step % 4]).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = sum(float(mse(model, batch).detach()) for batch in batches) / 4
    assert after < 0.5 * found.initial_loss


def test_the_example_of_the_docs_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    (example,) = (
        code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "exact_c" in code
    )
    names: dict = {}
    exec(compile(example, "docs/methods.md", "exec"), names)
    found = names["found"]
    assert len(found.eigenvalues) == 3 and len(found.eigenvalues[0]) == 20
    expected = math.sqrt(2 * found.initial_loss / (found.smoothness * 200))
    assert names["optimizer"].param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12)


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"total_steps": 0}, "total_steps must be an integer of 1 or more, got 0"),
        ({"total_steps": 10.0}, "total_steps"),
        ({"num_iters": 0}, "num_iters"),
        ({"num_iters": 2}, "pass a function that makes one"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"negative": "abs"}, "negative must be one of signed, magnitude, got 'abs'"),
        ({"batches": []}, "batches is empty"),
        ({"batches": (scale for scale in [1.0])}, "batches is a generator"),
        ({"batches": [1.0, float("nan")]}, "initial loss of batch 1 is nan"),
        ({"model": Quadratic([1.0, 1.0, 1.0], offset=-9.0)}, "the initial loss is -7.5"),
        ({"model": Quadratic([-2.0, -1.0, 0.5], offset=9.0)}, "eigenvalues is -[12].*'magnitude'"),
        ({"loss": lambda model, _: model.first.sum()}, "eigenvalues is 0 "),
        ({"model": Quadratic([1.0, 1.0, 1.0]).requires_grad_(False)}, "no parameter that requires"),
    ],
)
def test_errors_say_what_is_wrong(changes, words) -> None:
    given = {"model": Quadratic([2.0, 1.0, 0.5]), "loss": call, "batches": [1.0], "total_steps": 10}
    with pytest.raises(ValueError, match=words):
        exact_constant(**{**given, **changes})


def test_a_hessian_that_is_not_finite_names_its_batch() -> None:
    def root(model: nn.Module, batch: float) -> torch.Tensor:
        return (model.first - 1).square().sum().sqrt() + batch  # no second derivative at w0

    with pytest.raises(ValueError, match="Hessian of batch 0 of model 0 is not finite"):
        exact_constant(Quadratic([1.0, 1.0, 1.0]), root, [1.0], 10)


def test_a_negative_eigenvalue_by_magnitude() -> None:
    model = Quadratic([-2.0, -1.0, 0.5], offset=9.0)
    found = exact_constant(model, call, [1.0], 10, negative="magnitude", tolerance=1e-9)
    assert found.smoothness == pytest.approx(2.0, rel=1e-7)


def test_an_iteration_that_does_not_settle_warns() -> None:
    # two eigenvalues of one size and opposite signs: the quotient turns for ever
    with pytest.warns(UserWarning, match="still changes"):
        exact_constant(Quadratic([3.0, -3.0, 2.9], 9.0), call, [1.0], 10, negative="magnitude",
                       max_iterations=3, tolerance=1e-6)  # fmt: skip
