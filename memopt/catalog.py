"""The one table of methods: everything that lists methods reads it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from memopt.errors import unknown
from memopt.params import Targets, param_groups

CAPABILITIES = {
    "accumulation": "micro-gradients enter the state in backward (`memopt.accumulate_in_backward`)",
    "in_backward": "the update happens in backward (`memopt.update_in_backward`)",
    "clipping": "`clip_grad_norm_` between backward and step",
    "compile": "training a model under `torch.compile`",
    "fsdp2": "weights sharded by `torch.distributed.fsdp.fully_shard`",
    "one_dim": "the method's own algorithm on 1-D weights (otherwise plain Adam)",
    "convolution": "4-D weights",
    "bf16_weights": "bfloat16 weights",
}
"""What a method may do beside training dense float32 weights; `Method.limits` names exceptions."""


@dataclass(frozen=True)
class Method:
    """One method of the catalog.

    Attributes:
        name: key, lower case, as used in configurations.
        title: name as printed.
        factory: ``module:Class`` of the optimizer.
        paper: arXiv identifier.
        subspace: in which coordinates the moments live.
        rule: how moments become a direction.
        storage: how the moments can be kept.
        timing: when gradients are consumed: ``step``, ``in backward`` or ``accumulated``.
        state_formula: numbers stored per treated m x n weight (n the reduced side).
        kind: ``optimizer``; ``adapter``: trains small added weights in place of the model's own
            (and changes the model it is created for); ``distributed``: torch's own, for several
            processes.
        limits: what the method does not do (a key of `CAPABILITIES`) and why.
    """

    name: str
    title: str
    factory: str
    paper: str
    subspace: str
    rule: str
    storage: str
    timing: str
    state_formula: str
    kind: str = "optimizer"
    limits: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> type[torch.optim.Optimizer]:
        """The optimizer class."""
        module, _, attribute = self.factory.partition(":")
        loaded: type[torch.optim.Optimizer] = getattr(importlib.import_module(module), attribute)
        return loaded

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the constructor with their defaults; ``params`` left out."""
        signature = inspect.signature(self.load()).parameters
        own = {name: p.default for name, p in signature.items() if name not in ("params", "common")}
        shared: dict[str, Any] = getattr(self.load(), "common_defaults", {})
        return {**own, **shared} if "common" in signature else own

    def groups(self, model: nn.Module, targets: Targets = "auto") -> list[dict[str, Any]]:
        """Parameter groups of a model for this method.

        Methods that treat every parameter alike (AdamW, AdamA, LOMO, AdaLomo) have no use for
        ``targets`` and get all parameters in one group; the others get `memopt.param_groups`.
        """
        if getattr(self.load(), "min_ndim", 0) == 0:
            return [{"params": list(model.named_parameters())}]
        return param_groups(model, targets)


_KEPT = "float32, bfloat16, 8-bit"
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        # ---- the four papers and GaLore
        Method(
            "adamw", "AdamW", "memopt.optimizers.adamw:AdamW", "1711.05101",
            "full", "Adam", "weight's dtype", "step", "2mn",
        ),
        Method(
            "gwt", "GWT", "memopt.optimizers.gwt:GWT", "2501.07237",
            "Haar approximation band", "Adam", _KEPT, "step", "2m⌈n/2^level⌉ + 1",
        ),
        Method(
            "coap", "COAP", "memopt.optimizers.coap:COAP", "2412.00071",
            "correlation-aware projection", "Adam", _KEPT, "step", "2mr + nr",
        ),
        Method(
            "adama", "AdamA", "memopt.optimizers.adama:AdamA", "2305.19982",
            "full", "Adam", "float32", "accumulated", "2mn",
        ),
        Method(
            "lomo", "LOMO", "memopt.optimizers.lomo:LOMO", "2306.09782",
            "full", "SGD", "none", "in backward", "0",
        ),
        Method(
            "adalomo", "AdaLomo", "memopt.optimizers.adalomo:AdaLomo", "2310.10195",
            "full", "Adafactor without momentum", "float32", "in backward", "m + n",
        ),
        Method(
            "galore", "GaLore", "memopt.optimizers.galore:GaLore", "2403.03507",
            "SVD projection", "Adam", _KEPT, "step", "2mr + nr",
        ),
        # ---- other projections of the gradient

        # ---- low-rank states and random subspaces

        # ---- one number or less for each of Adam's

        # ---- matrix-wise methods and blocks

        # ---- adapters

        # ---- several processes
        Method(
            "zero1_adamw", "ZeRO-1 AdamW", "memopt.optimizers.zero1_adamw:ZeRO1AdamW",
            "1910.02054", "full", "Adam", "weight's dtype", "step", "2mn / processes",
            kind="distributed",
            limits={
                "accumulation": "torch's own: its update needs the whole gradient",
                "in_backward": "the update ends with broadcasts that all processes must join",
                "fsdp2": "FSDP2 shards the states itself: use adamw",
            },
        ),
    )
}  # fmt: skip

UNAVAILABLE: dict[str, str] = {
    "clean": (
        "Clean (Nyström sketching) is not reproducible from public facts: only its title and "
        "affiliations were found, no algorithm, tables or code"
    ),
}
"""Methods that stand beside those of `METHODS` in the literature, and why they are not here."""


def get(name: str) -> Method:
    """The method of this name.

    Raises:
        ValueError: no such method; names the nearest.
    """
    if name in UNAVAILABLE:
        raise ValueError(f"{UNAVAILABLE[name]}.")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def create(
    name: str, model: nn.Module, *, targets: Targets = "auto", **arguments: Any
) -> torch.optim.Optimizer:
    """Builds a method's optimizer for a model, parameter groups included.

    Args:
        name: catalog name, for example ``"gwt"``.
        model: the model to train.
        targets: which layers the method treats, see `Method.groups`.
        **arguments: the optimizer's own arguments.

    Raises:
        ValueError: unknown method or argument (with the nearest), or nothing to treat.
        TypeError: not a model.
    """
    method = get(name)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"create wants the model, got a {type(model).__name__}; for parameters or groups of "
            f"your own call the class: memopt.{method.load().__name__}(parameters, ...)"
        )
    known = method.arguments()
    for argument in arguments:
        if argument not in known:
            raise unknown(f"argument of {name}", argument, known)
    return method.load()(method.groups(model, targets), **arguments)
