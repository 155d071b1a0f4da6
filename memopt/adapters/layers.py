"""Adapters in a model: ``W + (alpha / r) B A`` in place of W, by peft's layers.

peft brings the forward pass; which layers, the initial values and the merge are ours, so that draws
follow names and not the global generator.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from memopt.errors import UnsupportedCombination
from memopt.params import Targets, param_groups
from memopt.seeds import generator

ADAPTER = "default"  # peft's name of an only adapter
KINDS = "nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d (without groups) that is called as such"
Adapters = list[tuple[str, Any]]
"""Module names and peft's layers, in the order of the model."""


def inject(
    model: nn.Module, targets: Targets, *, rank: int, alpha: float, dropout: float
) -> Adapters:
    """Puts an adapter on every target and freezes all other weights, in place.

    A (r x n) and B (m x r) have peft's initial values; `start` makes them ours.

    Raises:
        ModuleNotFoundError: peft is not installed.
        UnsupportedCombination: a target is no linear or convolution layer, shares its weight with
            another, or the model has adapters already.
    """
    peft = _peft()
    if adapters_of(model):
        raise UnsupportedCombination(
            "the model has adapters already; call memopt.merge_adapters(model) first."
        )
    names = _modules(model, targets)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="|".join(re.escape(name) for name in names),
    )
    with torch.random.fork_rng(devices=[]):  # peft draws initial values, which are replaced here
        peft.inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    del model.peft_config  # or transformers takes the model for one that saves adapters alone
    return adapters_of(model)


def adapters_of(model: nn.Module) -> Adapters:
    """The adapters that a model has now."""
    named = [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_A")]
    return [(name, module) for name, module in named if ADAPTER in module.lora_A]


def weights(layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and the frozen W of an adapted layer."""
    return (
        layer.lora_A[ADAPTER].weight,
        layer.lora_B[ADAPTER].weight,
        layer.get_base_layer().weight,
    )


@torch.no_grad()
def start(layer: Any, *key: str | int) -> None:
    """Initial values: B zero, so that the function is the base's; A from the key.

    A is uniform in ``±1/sqrt(n)``: Kaiming's with a = sqrt 5, as in LoRA's code.
    """
    down, up, _ = weights(layer)
    up.zero_()
    if not down.is_meta:
        bound = down[0].numel() ** -0.5
        draw = torch.rand(down.shape, generator=generator(*key), device="cpu")
        down.copy_(draw.mul_(2 * bound).sub_(bound))


@torch.no_grad()
def fold(layer: Any) -> None:
    """``W <- W + (alpha / r) B A``, in float32 for narrower weights, rounded once."""
    down, up, base = weights(layer)
    precise = torch.promote_types(base.dtype, torch.float32)
    product = up.flatten(1).to(precise) @ down.flatten(1).to(precise)
    product = product.view_as(base).mul_(layer.scaling[ADAPTER])
    base.copy_(product.add_(base))


def merge_adapters(model: nn.Module) -> nn.Module:
    """Adds every adapter to its weight and gives the ordinary model back, all of it trainable.

    In place: the same object, with its own layers and the names of its parameters as before. An
    optimizer made for the adapters is of no use afterwards.

    Args:
        model: one that `memopt.create` gave adapters; without any it is returned as it is.
    """
    for _, layer in adapters_of(model):
        fold(layer)
    return remove(model)


def remove(model: nn.Module) -> nn.Module:
    """Takes the adapters away without merging them, and thaws the weights below."""
    for name, layer in adapters_of(model):
        base = layer.get_base_layer()
        base.requires_grad_(True)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, base)
    return model


def _peft() -> Any:
    try:
        import peft
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"LoRA and ReLoRA need the package peft ({error}): pip install peft, or install "
            "memopt[experiments]."
        ) from error
    return peft


def _modules(model: nn.Module, targets: Targets) -> list[str]:
    """Names of the modules whose weights are targets."""
    groups = param_groups(model, targets)
    targeted = {id(param): name for name, param in groups[0]["params"]}
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if _adaptable(module) and id(module.weight) in targeted:
            holders.setdefault(id(module.weight), []).append(name)
    for key, parameter in targeted.items():
        held = holders.get(key, [])
        if held == [""]:
            raise UnsupportedCombination(
                "the model is itself the layer to adapt, which cannot be replaced in place; put "
                "it into a module."
            )
        if len(held) != 1:
            why = f"is shared by {', '.join(held)}" if held else "belongs to no layer of " + KINDS
            raise UnsupportedCombination(
                f"parameter {parameter!r} cannot have an adapter: it {why}; choose other targets."
            )
    return [held[0] for held in holders.values()]


def _adaptable(module: nn.Module) -> bool:
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return False  # torch's attention reads its weight and never calls it
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return module.groups == 1
    return isinstance(module, nn.Linear)
