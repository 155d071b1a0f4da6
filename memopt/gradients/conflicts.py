"""GCond's rules for conflicting gradients (Limarenko et al., arXiv 2509.07252).

Every rule subtracts multiples of one task's gradient from another's, or drops one. So a resolved
gradient is ``sum_j C_ij g_j`` of the given ones, and all that the rules ask for, lengths and
angles, follows from C and the products ``g_i . g_j``. The rules here work on these K x K numbers;
`memopt.gradients.gcond` computes the products and applies C, in one pass over the parameters each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# a gradient shorter than this share of what it was is a rounding error, and has no direction
VANISHED = 1e-5


@dataclass(frozen=True)
class Rules:
    """What `GCond` was told about conflicts; see there.

    Attributes:
        mode: ``"smooth"`` or ``"zones"``.
        thresholds: critical, main and weak cosine.
        score_weights: stability and strength.
        remap_power: exponent of the smooth angle between main and critical.
        dominance_window: wins in a row after which a task must lose; 0: never.
        max_iterations: resolved pairs; None: twice the number of tasks.
    """

    mode: str = "smooth"
    thresholds: tuple[float, float, float] = (-0.8, -0.5, 0.0)
    score_weights: tuple[float, float] = (0.8, 0.2)
    remap_power: float = 2.0
    dominance_window: int = 3
    max_iterations: int | None = None

    def angle(self, cosine: float) -> float:
        """The smooth mode's conflict angle, 0 at the weak threshold to pi at the critical one."""
        critical, main, weak = self.thresholds
        if cosine >= main:
            return math.pi / 2 * (1 - (cosine - main) / (weak - main))
        if cosine > critical:
            share = (cosine - main) / (critical - main)
            return math.pi / 2 * (1 + share**self.remap_power)
        return math.pi


@dataclass
class Conflict:
    """One resolved pair: the tasks' numbers, their cosine, and who won (None: nobody)."""

    pair: tuple[int, int]
    cosine: float
    winner: int | None


@dataclass
class Resolution:
    """What became of the gradients.

    Attributes:
        coefficients: C, (K, K) float64: the resolved gradient i is ``sum_j C_ij g_j``.
        conflicts: the pairs in the order in which they were resolved.
    """

    coefficients: Tensor
    conflicts: list[Conflict] = field(default_factory=list)


def resolve(
    products: Tensor,
    previous: Tensor,
    previous_norms: Sequence[float],
    norm_averages: Sequence[float],
    history: Sequence[int],
    rules: Rules,
    start: Sequence[float] | None = None,
) -> Resolution:
    """Resolves conflicts pair by pair, the most opposed first.

    Args:
        products: (K, K) float64, ``g_i . g_j``.
        previous: (K, K) float64, ``g_i . p_j`` with the last step's gradients p.
        previous_norms: lengths of p.
        norm_averages: running means of the lengths of g.
        history: the last winners; they count with those of this call.
        rules: thresholds, weights and modes.
        start: factor on each gradient before the first rule (a cap on its length); default 1.

    Returns:
        The coefficients, and the conflicts with their winners.
    """
    count = len(products)
    scale = torch.ones(count) if start is None else torch.tensor(start)
    c = torch.diag(scale.double())
    least = VANISHED**2 * products.diagonal() * c.diagonal() ** 2
    won, conflicts = list(history), []
    for _ in range(rules.max_iterations or 2 * count):
        gram = c @ products @ c.T
        found = _worst(gram, least, rules.thresholds[2])
        if found is None:
            break
        (i, j), cosine = found
        arbiter = _Arbiter(gram, c @ previous, previous_norms, norm_averages, won, rules)
        winner = _step(c, gram, (i, j), cosine, arbiter, rules)
        if winner is not None:
            won.append(winner)
        conflicts.append(Conflict((i, j), cosine, winner))
    return Resolution(c, conflicts)


def _worst(gram: Tensor, least: Tensor, weak: float) -> tuple[tuple[int, int], float] | None:
    """The pair with the most negative cosine below the weak threshold, and that cosine."""
    worst, pair = weak, None
    for i in range(len(gram)):
        for j in range(i + 1, len(gram)):
            if gram[i, i] <= least[i] or gram[j, j] <= least[j]:
                continue
            cosine = float(gram[i, j] / (gram[i, i] * gram[j, j]).sqrt())
            if cosine < worst:
                worst, pair = max(cosine, -1.0), (i, j)
    return None if pair is None else (pair, worst)


@dataclass
class _Arbiter:
    """Chooses who of two tasks wins."""

    gram: Tensor
    previous: Tensor
    previous_norms: Sequence[float]
    norm_averages: Sequence[float]
    won: Sequence[int]
    rules: Rules

    def winner(self, i: int, j: int) -> int:
        """The task with the higher score; one that has won too often in a row loses."""
        window = self.rules.dominance_window
        last = self.won[-window:] if window else []
        if len(last) == window and window and len(set(last)) == 1 and last[0] in (i, j):
            return j if last[0] == i else i
        strength = {k: self._norm(k) / max(self.norm_averages[k], 1e-30) for k in (i, j)}
        total = strength[i] + strength[j]
        stable, strong = self.rules.score_weights
        score = {k: stable * self._stability(k) + strong * strength[k] / total for k in (i, j)}
        return j if score[j] > score[i] else i

    def _norm(self, k: int) -> float:
        return float(self.gram[k, k]) ** 0.5

    def _stability(self, k: int) -> float:
        """Cosine with the task's own gradient of the last step, where that is positive."""
        lengths = self._norm(k) * self.previous_norms[k]
        return max(float(self.previous[k, k]) / lengths, 0.0) if lengths else 0.0


def _step(
    c: Tensor, gram: Tensor, pair: tuple[int, int], cosine: float, arbiter: _Arbiter, rules: Rules
) -> int | None:
    """Changes two rows of C by the rule of the cosine's zone; returns the winner, if one counts."""
    critical, main, _ = rules.thresholds
    if rules.mode == "smooth":
        winner = arbiter.winner(*pair)
        angle = rules.angle(cosine)
        shares = math.sin(angle), math.sin(min(angle, math.pi / 2))
    elif cosine >= main:  # weak: both, and nobody wins
        winner, shares = pair[0], (1.0, 1.0)
    else:
        winner, shares = arbiter.winner(*pair), (0.0, 1.0)
    loser = pair[0] if winner == pair[1] else pair[1]
    if rules.mode == "zones" and cosine < critical:
        c[loser] = 0
        return winner
    dot, won, lost = gram[winner, loser], c[winner].clone(), c[loser].clone()
    c[winner] = won - shares[0] * dot / gram[loser, loser] * lost
    c[loser] = lost - shares[1] * dot / gram[winner, winner] * won
    return None if rules.mode == "zones" and cosine >= main else winner
