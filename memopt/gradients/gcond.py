"""GCond: accumulated gradients of several tasks, made one (Limarenko et al., arXiv 2509.07252)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from memopt.errors import MiniBatchError, NonFiniteGradientError, unknown
from memopt.gradients.conflicts import Conflict, Rules, resolve
from memopt.states import compute_dtype

CHOICES = {
    "accumulation": ("sequential", "every"),
    "mode": ("smooth", "zones"),
    "previous": ("raw", "resolved"),
    "update": ("momentum", "lion"),
    "storage": ("bfloat16", "float32"),
}
CHUNK = 2**20  # numbers of each task that are in float64 at once


@dataclass(frozen=True)
class Report:
    """What one `GCond.combine` did.

    Attributes:
        losses: weighted mean loss of each task, on its device.
        norms: length of each task's gradient before any rule.
        conflicts: resolved pairs as (task, task, cosine, winner or None), in order.
    """

    losses: dict[str, Tensor]
    norms: dict[str, float]
    conflicts: list[tuple[str, str, float, str | None]]


class GCond:
    """Gathers each task's gradient, resolves their conflicts, and writes ``.grad``.

    Not an optimizer: call ``optimizer.step()`` after it, with an optimizer whose own first moment
    is off (AdamW with betas (0, 0.95)), since the momentum is here. No memory saver either: K
    tasks keep 2 K numbers a weight in `storage`, and one in float32 for the momentum.

    Rules, on pairs of tasks, the most negative cosine c first, as long as one is below weak:
    a winner w and a loser l are chosen by ``score = s max(0, cos(g, g of last step)) + r
    (|g| / mean |g|) / (sum of both)``; one that won `dominance_window` times in a row loses. Then
    mode ``"smooth"``: with the angle a(c), 0 at weak, pi/2 at main, pi from critical on,
    ``w <- w - sin(a) (w.l / l.l) l`` and ``l <- l - sin(min(a, pi/2)) (w.l / w.w) w``; mode
    ``"zones"``: c below critical: l is dropped; below main: l is projected; below weak: both are.
    The sum of what is left enters the momentum ``m <- beta m + (1 - beta) g``, and
    ``m / (1 - beta^t)`` becomes the gradient.

    Args:
        params: the weights, shared and others: a weight that a task does not use has gradient zero.
        weights: task name to the factor on its loss.
        micro_batches: N, losses of each step.
        accumulation: ``"sequential"``: N / K micro-batches for each task in turn (the official
            code's default); ``"every"``: each micro-batch for every task.
        mode, thresholds, score_weights, remap_power, dominance_window, max_iterations: see
            `memopt.gradients.conflicts.Rules`.
        norm_average_beta: of the running mean of each task's gradient length, which starts at 1.
        norm_cap: longest gradient of a task that enters the rules; None: any.
        momentum: beta; 0 writes the resolved sum itself.
        previous: what the score's last gradient is: ``"raw"``, before the rules, or
            ``"resolved"``, after them, as the released code has it.
        update: ``"momentum"``, or ``"lion"``: ``sign(mhat) min(|p| / |mhat|, trust_clip)
            trust_coefficient`` for each tensor, for plain SGD.
        trust_coefficient, trust_clip: of ``"lion"``.
        storage: of the gathered gradients: ``"bfloat16"`` (the paper's) or ``"float32"``.

    Raises:
        ValueError: a bad argument.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        weights: Mapping[str, float],
        micro_batches: int,
        *,
        accumulation: str = "sequential",
        mode: str = "smooth",
        thresholds: tuple[float, float, float] = (-0.8, -0.5, 0.0),
        score_weights: tuple[float, float] = (0.8, 0.2),
        remap_power: float = 2.0,
        dominance_window: int = 3,
        max_iterations: int | None = None,
        norm_average_beta: float = 0.95,
        norm_cap: float | None = None,
        momentum: float = 0.85,
        previous: str = "raw",
        update: str = "momentum",
        trust_coefficient: float = 1e-4,
        trust_clip: float = 100.0,
        storage: str = "bfloat16",
    ) -> None:
        self.params = [param for param in params if param.requires_grad]
        self.weights = {task: float(weight) for task, weight in weights.items()}
        self.micro_batches, self.accumulation = micro_batches, accumulation
        self.rules = Rules(
            mode, thresholds, score_weights, remap_power, dominance_window, max_iterations
        )
        self.norm_average_beta, self.norm_cap = norm_average_beta, norm_cap
        self.momentum, self.previous, self.update = momentum, previous, update
        self.trust_coefficient, self.trust_clip = trust_coefficient, trust_clip
        self.storage = storage
        self._check()
        self._gathered = [self._zeros(storage) for _ in self.weights]
        self._last = [self._zeros(storage) for _ in self.weights]
        self._mean = self._zeros("float32")
        self._norm_averages = [1.0] * len(self.weights)
        self._history: list[int] = []
        self._losses: dict[str, Tensor] = {}
        self.steps = 0

    def _zeros(self, storage: str) -> list[Tensor]:
        """One tensor a parameter, in bfloat16 or in compute precision."""
        low = torch.bfloat16 if storage == "bfloat16" else None
        return [torch.zeros_like(p, dtype=low or compute_dtype(p.dtype)) for p in self.params]

    def _check(self) -> None:
        for key, known in CHOICES.items():
            value = self.rules.mode if key == "mode" else getattr(self, key)
            if value not in known:
                raise unknown(key, str(value), known)
        if not self.params or not self.weights:
            raise ValueError("GCond needs at least one trained parameter and one task")
        n, k = self.micro_batches, len(self.weights)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"micro_batches must be an integer of 1 or more, got {n!r}")
        if self.accumulation == "sequential" and n % k:
            raise ValueError(
                f"accumulation='sequential' shares the micro-batches out: {n} cannot be divided by "
                f"{k} tasks; take a multiple, or accumulation='every'."
            )
        critical, main, weak = self.rules.thresholds
        if not -1 <= critical <= main <= weak <= 1:
            raise ValueError(
                "thresholds must rise from critical over main to weak, within -1 to 1; got "
                f"{self.rules.thresholds!r}"
            )
        if min(self.rules.score_weights) < 0 or sum(self.rules.score_weights) <= 0:
            raise ValueError(f"score_weights must be 0 or more, got {self.rules.score_weights!r}")
        for key in ("momentum", "norm_average_beta"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"{key} must be in [0, 1), got {getattr(self, key)!r}")
        if self.rules.dominance_window < 0:
            raise ValueError("dominance_window must be 0 or more")
        for key in ("norm_cap", "trust_coefficient", "trust_clip"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ValueError(f"{key} must be above zero, got {value!r}")
        if not self.rules.remap_power > 0:
            raise ValueError(f"remap_power must be above zero, got {self.rules.remap_power!r}")

    # ---- gathering -------------------------------------------------------------------------

    def step(self, losses: Mapping[str, Callable[[Any], Tensor]], batches: Iterator[Any]) -> Report:
        """Gathers from N micro-batches and combines: ``.grad`` is ready for the optimizer.

        Args:
            losses: task name to its loss of a micro-batch, a scalar with a graph of its own.
            batches: iterator; the next N are taken.

        Raises:
            ValueError: the tasks are others than those of ``weights``, or the batches end.
            NonFiniteGradientError: see `combine`.
        """
        if set(losses) != set(self.weights):
            raise ValueError(f"losses are of {sorted(losses)}, weights of {sorted(self.weights)}")
        shared = self.accumulation == "every"
        of = self.micro_batches if shared else self.micro_batches // len(self.weights)
        turns = [list(losses)] if shared else [[task] for task in losses]
        for tasks in turns:
            for _ in range(of):
                try:
                    batch = next(batches)
                except StopIteration:
                    self.discard()
                    raise ValueError(
                        f"the batches ended before the {self.micro_batches} of this step"
                    ) from None
                for task in tasks:
                    self.accumulate(task, losses[task](batch), of)
        return self.combine()

    def accumulate(self, task: str, loss: Tensor, of: int, retain_graph: bool = False) -> None:
        """Adds the gradient of ``weight loss / of`` to a task's; ``.grad`` is not touched.

        Args:
            task: name.
            loss: scalar.
            of: how many of these the task gets until `combine`.
            retain_graph: True where the next task's loss shares the graph.
        """
        if task not in self.weights:
            raise unknown("task", task, self.weights)
        weighted = loss * (self.weights[task] / of)
        grads = torch.autograd.grad(
            weighted, self.params, retain_graph=retain_graph, allow_unused=True
        )
        gathered = self._gathered[list(self.weights).index(task)]
        with torch.no_grad():
            for total, grad in zip(gathered, grads, strict=True):
                if grad is not None:
                    total.add_(grad)
        self._losses[task] = self._losses.get(task, torch.zeros_like(loss)) + weighted.detach()

    def discard(self) -> None:
        """Forgets what was gathered since the last `combine`."""
        for tensors in self._gathered:
            for tensor in tensors:
                tensor.zero_()
        self._losses = {}

    # ---- combining -------------------------------------------------------------------------

    @torch.no_grad()
    def combine(self) -> Report:
        """Resolves the conflicts of what was gathered and writes the parameters' ``.grad``.

        Raises:
            NonFiniteGradientError: a task's gradient is not finite; it is forgotten, and nothing
                was changed.
        """
        products, previous, last_norms = self._products()
        norms = products.diagonal().sqrt().tolist()
        for task, norm in zip(self.weights, norms, strict=True):
            if not math.isfinite(norm):
                self.discard()
                raise NonFiniteGradientError(f"the gradient of task {task!r} is not finite")
        beta = self.norm_average_beta
        pairs = zip(self._norm_averages, norms, strict=True)
        self._norm_averages = [beta * mean + (1 - beta) * norm for mean, norm in pairs]
        cap = self.norm_cap or math.inf
        resolution = resolve(
            products, previous, last_norms, self._norm_averages, self._history, self.rules,
            [min(1.0, cap / norm) if norm else 1.0 for norm in norms],
        )  # fmt: skip
        self._remember(resolution.conflicts)
        self.steps += 1
        self._write(resolution.coefficients)
        tasks = list(self.weights)
        report = Report(
            self._losses, dict(zip(tasks, norms, strict=True)),
            [
                (tasks[c.pair[0]], tasks[c.pair[1]], c.cosine,
                 None if c.winner is None else tasks[c.winner])
                for c in resolution.conflicts
            ],
        )  # fmt: skip
        self.discard()
        return report

    def _products(self) -> tuple[Tensor, Tensor, list[float]]:
        """``g_i . g_j``, ``g_i . p_j`` and ``|p_j|`` over all parameters, summed in float64."""
        count, device = len(self.weights), self.params[0].device
        products, previous = torch.zeros(2, count, count, dtype=torch.float64, device=device)
        squares = torch.zeros(count, dtype=torch.float64, device=device)
        for gathered, last in zip(
            zip(*self._gathered, strict=True), zip(*self._last, strict=True), strict=True
        ):
            parts = [torch.stack([t.flatten() for t in each]) for each in (gathered, last)]
            for g, p in zip(*(part.split(CHUNK, dim=1) for part in parts), strict=True):
                g, p = g.double(), p.double()
                products += (g @ g.T).to(device)
                previous += (g @ p.T).to(device)
                squares += p.square().sum(1).to(device)
        return products.cpu(), previous.cpu(), squares.sqrt().tolist()

    def _remember(self, conflicts: list[Conflict]) -> None:
        window = self.rules.dominance_window
        won = self._history + [c.winner for c in conflicts if c.winner is not None]
        self._history = won[-window:] if window else []

    def _write(self, coefficients: Tensor) -> None:
        """Sum, momentum and ``.grad``, one parameter at a time; then g becomes the last one."""
        for index, param in enumerate(self.params):
            mean = self._mean[index]
            given = torch.stack([tensors[index] for tensors in self._gathered]).to(mean.dtype)
            c = coefficients.to(given)
            total = torch.tensordot(c.sum(0), given, dims=1)
            mean.mul_(self.momentum).add_(total, alpha=1 - self.momentum)
            corrected = mean / (1 - self.momentum**self.steps)
            if self.update == "lion":
                corrected = self._lion(corrected, param)
            param.grad = corrected.to(param.dtype)
            if self.previous == "resolved":
                given = torch.tensordot(c, given, dims=1)
            for tensors, gradient in zip(self._last, given, strict=True):
                tensors[index].copy_(gradient)

    def _lion(self, mean: Tensor, param: Tensor) -> Tensor:
        length, weight = mean.norm(), param.to(mean.dtype).norm()
        ratio = torch.where((length > 0) & (weight > 0), weight / length, 1.0)
        return mean.sign() * ratio.clamp(max=self.trust_clip) * self.trust_coefficient

    # ---- checkpoints -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers, for ``torch.load(weights_only=True)``.

        Raises:
            MiniBatchError: between `accumulate` and `combine`.
        """
        if self._losses:
            raise MiniBatchError("gradients were gathered: call combine() or discard() first")
        return {
            "tasks": list(self.weights),
            "steps": self.steps,
            "history": list(self._history),
            "norm_averages": list(self._norm_averages),
            "last": [[t.clone() for t in tensors] for tensors in self._last],
            "mean": [t.clone() for t in self._mean],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a `state_dict` of the same tasks and parameters.

        Raises:
            ValueError: other tasks or shapes; nothing was loaded.
        """
        if state["tasks"] != list(self.weights):
            raise ValueError(
                f"this state is of tasks {state['tasks']}, not of {list(self.weights)}"
            )
        shapes = [tuple(param.shape) for param in self.params]
        for tensors in (state["mean"], *state["last"]):
            if [tuple(t.shape) for t in tensors] != shapes:
                raise ValueError("this state is of other parameters: their shapes differ")
        self.steps, self._history = state["steps"], list(state["history"])
        self._norm_averages = list(state["norm_averages"])
        mine = [self._mean, *self._last]
        for kept, given in zip(mine, (state["mean"], *state["last"]), strict=True):
            for tensor, value in zip(kept, given, strict=True):
                tensor.copy_(value)
        self.discard()
