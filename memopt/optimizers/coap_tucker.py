"""COAP on convolutions: the step of `memopt.COAP` with one basis for each channel mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from memopt.rules import Direction, rule
from memopt.states import Buffer, load, store
from memopt.subspaces import tucker


def buffers(shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
    """A basis for each projected mode, and the rule's moments in the shape of the core."""
    ranks = _ranks(shape, group)
    bases = {
        f"projection_{mode}": Buffer((shape[mode], rank), kind="projection")
        for mode, rank in ranks.items()
    }
    core = tuple(ranks.get(mode, size) for mode, size in enumerate(shape))
    return {**bases, **rule(group["rule"]).buffers(core)}


def project(grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """The core of a gradient in the current bases."""
    return tucker.project(grad, _factors(state, _ranks(tuple(grad.shape), group)))


def expanded(
    answer: Direction, state: dict[str, Any], group: dict[str, Any], param: Tensor
) -> Tensor:
    """What is subtracted from the weight: the rule's answer, back from the core."""
    update = tucker.back(answer.value, _factors(state, _ranks(tuple(param.shape), group)))
    if answer.finish:
        update = answer.finish(update.flatten(1)).view_as(param)
    return update.mul_(answer.step_size * group["scale"])


def refresh(grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """A decomposition from scratch at the start and at recalibrations; Eq. 5 in between."""
    modes = _ranks(tuple(grad.shape), group)
    refreshes = (state["step"] - 1) // group["update_interval"]
    old = _factors(state, modes)
    if refreshes % group["recalibrate_every"] == 0:
        new = tucker.decompose(grad, modes)
    else:
        variant = group["correlation_update"]
        new = tucker.correlation_step(grad, old, load(state, "exp_avg"), variant=variant)
    if group["rotate_moments"] and refreshes > 0:
        turn_moments(state, {mode: new[mode].T @ old[mode] for mode in modes})
    for mode, basis in new.items():
        store(state, f"projection_{mode}", basis)


def turn_moments(state: dict[str, Any], changes: tucker.Factors) -> None:
    """Moments in the new basis: ``M <- M P_old^T P_new``, ``V <- (sqrt(V) P_old^T P_new)^2``.

    ``changes`` maps the projected mode to ``P_new^T P_old``.
    """
    exp_avg, root = load(state, "exp_avg"), load(state, "exp_avg_sq").sqrt()
    store(state, "exp_avg", tucker.back(exp_avg, changes))
    store(state, "exp_avg_sq", tucker.back(root, changes).square())


def _ranks(shape: tuple[int, ...], group: dict[str, Any]) -> dict[int, int]:
    ratio = group["conv_rank_ratio"] or group["rank_ratio"]
    return tucker.ranks(shape, group["rank"], ratio)


def _factors(state: dict[str, Any], modes: Iterable[int]) -> tucker.Factors:
    return {mode: load(state, f"projection_{mode}") for mode in modes}
