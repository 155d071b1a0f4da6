"""Loading a state_dict: whether it belongs to the optimizer, and the dtypes that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from memopt.states import sharding, tensors_of


def load(
    optimizer: Any, by_torch: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
) -> None:
    """Loads as torch does (``by_torch``), but after a check, and with every tensor's own dtype.

    Raises:
        ValueError: see `check`; nothing was loaded.
    """
    final: dict[str, Any] = {}

    def look(_: torch.optim.Optimizer, given: dict[str, Any]) -> None:
        check(optimizer, given)
        final.update(given)  # other hooks may have changed it

    hook = optimizer.register_load_state_dict_pre_hook(look)
    try:
        by_torch(state_dict)
    finally:
        hook.remove()
    for param, saved in states(optimizer, final):
        for key, value in saved.items():
            if isinstance(value, Tensor):
                device = optimizer.state[param][key].device  # torch keeps step counts on the CPU
                kept = sharding.placed(value.detach().clone().to(device), param)
                optimizer.state[param][key] = kept


def states(optimizer: Any, state_dict: dict[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """Each parameter with its saved state (empty where none was saved), in the order of groups."""
    saved_ids = chain.from_iterable(g["params"] for g in state_dict["param_groups"])
    params = chain.from_iterable(g["params"] for g in optimizer.param_groups)
    for saved, param in zip(saved_ids, params, strict=True):
        yield param, state_dict["state"].get(saved, {})


def check(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """Compares the method, hyperparameters by name, and saved tensors with what is allocated.

    Raises:
        ValueError: another method's name, groups without a hyperparameter of this one, or state
            that it does not keep.
    """
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    name = names[0]
    if state_dict.get("method", name) not in names:  # torch and early versions of memopt write none
        raise ValueError(
            f"this state_dict is not of {name}: it was saved by memopt.{state_dict['method']}."
        )
    # Not `defaults` alone: torch adds keys of its own to them at the first load.
    known = set(optimizer.defaults).intersection(*optimizer.param_groups)
    for group in state_dict["param_groups"]:
        if missing := sorted(known - set(group)):
            raise ValueError(
                f"this state_dict is not of {name}: its groups have no {', '.join(missing)}."
            )
    sizes = [[len(g["params"]) for g in groups] for groups in _both(optimizer, state_dict)]
    if sizes[0] != sizes[1]:
        return  # torch names that itself
    for group, saved_group in zip(*_both(optimizer, state_dict), strict=True):
        for param, saved_id in zip(group["params"], saved_group["params"], strict=True):
            saved = state_dict["state"].get(saved_id, {})
            expected = _shapes(optimizer, param, saved_group)
            found = {key: tuple(getattr(value, "shape", ())) for key, value in saved.items()}
            if saved and found != expected:
                raise ValueError(
                    f"this state_dict is not of this {name}: for {optimizer.name_of(param)!r} it "
                    f"has {_words(found)}, but {_words(expected)} is needed."
                )


def _both(optimizer: Any, state_dict: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    return optimizer.param_groups, state_dict["param_groups"]


def _shapes(optimizer: Any, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What the optimizer would keep for a parameter under a saved group's hyperparameters."""
    shapes: dict[str, tuple[int, ...]] = {"step": ()}
    for key, buffer in optimizer.declared(param, group).items():
        specs = tensors_of(key, buffer, group.get("storage", "float32"), param.dtype)
        shapes |= {name: shape for name, (shape, _) in specs.items()}
    return shapes


def _words(shapes: dict[str, tuple[int, ...]]) -> str:
    named = (f"{key} {shape}" for key, shape in shapes.items() if key != "step")
    return ", ".join(named) or "nothing"
