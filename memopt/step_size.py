"""The "exact" constant step size for Adam (Mazumder et al., arXiv 2309.08339)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]
NEGATIVE = ("signed", "magnitude")


@dataclass(frozen=True)
class ExactConstant:
    """A constant step size and what it was made of.

    Attributes:
        step_size: ``sqrt(2 initial_loss / (smoothness total_steps))``.
        initial_loss: L(w0), the mean loss of the first model over all batches.
        smoothness: K, the largest of the eigenvalues below.
        eigenvalues: for each model, for each batch, the Hessian's eigenvalue of largest magnitude.
        total_steps: T.
    """

    step_size: float
    initial_loss: float
    smoothness: float
    eigenvalues: tuple[tuple[float, ...], ...]
    total_steps: int


def exact_constant(
    model: nn.Module | Callable[[], nn.Module],
    loss: Loss,
    batches: Iterable[Any],
    total_steps: int,
    *,
    num_iters: int = 1,
    max_iterations: int = 100,
    tolerance: float = 1e-3,
    negative: str = "signed",
    seed: int = 0,
) -> ExactConstant:
    """Measures ``alpha = sqrt(2 L(w0) / (K T))``, the rate at which Adam is then kept.

    L(w0) is the mean loss at initialisation. K, the estimate of the smoothness constant, is the
    largest over `num_iters` initialisations and all batches of the Hessian's dominant eigenvalue,
    by power iteration on Hessian-vector products: (models x batches x iterations) of them, each
    about two backward passes, and three vectors of the parameters' size. Nothing is trained and no
    weight, gradient or global random state is changed. Pass ``result.step_size`` as ``lr`` to any
    optimizer.

    Args:
        model: the model to train, at initialisation; or a function that makes a fresh one, called
            `num_iters` times under the seeds ``seed``, ``seed + 1``, ... (the first is w0).
            Parameters that do not require gradients are left out. It is measured in eval mode.
        loss: of a model and a batch, a scalar that can be differentiated twice (attention:
            ``attn_implementation="eager"``).
        batches: a list or another iterable that can be read several times; one element is the
            full batch. The paper uses those of an epoch.
        total_steps: T, the updates of the whole training: epochs times batches an epoch.
        num_iters: initialisations; the official code has as many as epochs.
        max_iterations: of a power iteration; it warns where they do not suffice.
        tolerance: relative change of the eigenvalue below which an iteration ends.
        negative: a dominant eigenvalue can be negative. ``"signed"``: K is the maximum with signs,
            as the official code has it; ``"magnitude"``: of absolute values, which is what
            smoothness means.
        seed: of the models and of the iterations' first vectors.

    Raises:
        ValueError: a bad argument; a loss or an eigenvalue that is not finite; a loss that is not
            above zero; no positive eigenvalue.
    """
    _check(total_steps, num_iters, max_iterations, tolerance, negative)
    if isinstance(model, nn.Module) and num_iters != 1:
        raise ValueError(
            f"num_iters={num_iters} asks for fresh models; pass a function that makes one "
            "(lambda: Model()) in place of the model."
        )
    if iter(batches) is batches:
        raise ValueError("batches is a generator, which can be read once; pass a list.")
    initial_loss, eigenvalues = 0.0, []
    for index in range(num_iters):
        with torch.random.fork_rng():
            torch.manual_seed(seed + index)
            fresh = model if isinstance(model, nn.Module) else model()
        with _measured(fresh) as params:
            if index == 0:
                initial_loss = _mean_loss(fresh, loss, batches)
            found = [
                _dominant(
                    params, loss(fresh, batch), f"batch {number} of model {index}",
                    max_iterations, tolerance, torch.Generator().manual_seed(seed + number),
                )
                for number, batch in enumerate(batches)
            ]  # fmt: skip
        eigenvalues.append(tuple(found))
    smoothness = max(abs(v) if negative == "magnitude" else v for row in eigenvalues for v in row)
    if smoothness <= 0:
        raise ValueError(
            f"no positive smoothness constant: the largest of the dominant eigenvalues is "
            f"{smoothness:g} (the Hessian is negative or zero along it); pass "
            "negative='magnitude' for its absolute value, or take other batches."
        )
    step_size = math.sqrt(2 * initial_loss / (smoothness * total_steps))
    return ExactConstant(step_size, initial_loss, smoothness, tuple(eigenvalues), total_steps)


def _check(
    total_steps: int, num_iters: int, max_iterations: int, tolerance: float, negative: str
) -> None:
    whole = {"total_steps": total_steps, "num_iters": num_iters, "max_iterations": max_iterations}
    for name, value in whole.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of 1 or more, got {value!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance!r}")
    if negative not in NEGATIVE:
        raise ValueError(f"negative must be one of {', '.join(NEGATIVE)}, got {negative!r}")


@contextmanager
def _measured(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """The trained parameters, with every module in eval mode meanwhile."""
    params = [param for param in model.parameters() if param.requires_grad]
    if not params:
        raise ValueError("the model has no parameter that requires a gradient")
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield params
    finally:
        for module in training:
            module.training = True


def _mean_loss(model: nn.Module, loss: Loss, batches: Iterable[Any]) -> float:
    with torch.no_grad():
        values = [float(loss(model, batch)) for batch in batches]
    if not values:
        raise ValueError("batches is empty")
    for number, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"the initial loss of batch {number} is {value}")
    mean = sum(values) / len(values)
    if mean <= 0:
        raise ValueError(f"the initial loss is {mean:g}; the formula needs one above zero")
    return mean


def _dominant(
    params: list[nn.Parameter],
    loss: Tensor,
    where: str,
    max_iterations: int,
    tolerance: float,
    generator: torch.Generator,
) -> float:
    """Eigenvalue of largest magnitude of the Hessian of ``loss``, by power iteration."""
    # a gradient that does not depend on the parameters has no Hessian: zeros that say so
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    grads = torch.autograd.grad(loss, params, create_graph=True, **options)
    vector = [torch.randn(p.shape, generator=generator).to(p) for p in params]
    value: float | None = None
    for _ in range(max_iterations):
        vector = _unit(vector)
        slope = sum((g * v).sum() for g, v in zip(grads, vector, strict=True))
        if not isinstance(slope, Tensor) or not slope.requires_grad:
            return 0.0
        product = torch.autograd.grad(slope, params, retain_graph=True, **options)
        before, value = (
            value,
            float(sum((h * v).sum() for h, v in zip(product, vector, strict=True))),
        )
        if not math.isfinite(value):
            raise ValueError(f"the Hessian of {where} is not finite; look at its loss and data.")
        if value == 0 or (before is not None and abs(value - before) < tolerance * abs(value)):
            return value
        vector = [h.detach() for h in product]
    warnings.warn(
        f"power iteration on {where}: the eigenvalue {value:g} still changes by more than "
        f"{tolerance:g} of itself after {max_iterations} iterations (two of the same size?)",
        stacklevel=3,
    )
    return float(value or 0.0)


def _unit(vector: list[Tensor]) -> list[Tensor]:
    norm = torch.stack([v.square().sum() for v in vector]).sum().sqrt()
    return [v / norm for v in vector]
