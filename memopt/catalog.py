"""The one table of methods: everything that lists methods reads it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from memopt.errors import UnsupportedCombination, unknown
from memopt.params import Targets, param_groups


@dataclass(frozen=True)
class Method:
    """One method of the catalog.

    Attributes:
        name: key, lower case, as used in configurations.
        title: name as printed.
        factory: ``module:Class`` of the optimizer.
        paper: arXiv identifier, or the address of what the method is cited by.
        subspace: in which coordinates the moments live.
        rule: how moments become a direction.
        storage: how the moments can be kept.
        timing: when gradients are consumed: ``step``, ``in backward`` or ``accumulated``.
        state_formula: numbers stored per treated m x n weight (n the reduced side).
        kind: ``optimizer``; ``adapter``: trains small added weights in place of the model's own
            (and changes the model it is created for); ``distributed``: torch's own, for several
            processes.
        limits: what the method does not do (a key of `memopt.capabilities.CAPABILITIES`) and why.
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

    @property
    def link(self) -> str:
        """Address of the paper."""
        return self.paper if "://" in self.paper else f"https://arxiv.org/abs/{self.paper}"

    def load(self) -> type[torch.optim.Optimizer]:
        """The optimizer class."""
        module, _, attribute = self.factory.partition(":")
        loaded: type[torch.optim.Optimizer] = getattr(importlib.import_module(module), attribute)
        return loaded

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the constructor with their defaults; weights left out."""
        signature = inspect.signature(self.load()).parameters
        others = ("params", "model", "targets", "common")
        own = {name: p.default for name, p in signature.items() if name not in others}
        shared: dict[str, Any] = getattr(self.load(), "common_defaults", {})
        return {**own, **shared} if "common" in signature else own

    def in_loop(self, micro_batches: int, max_grad_norm: float | None = None) -> dict[str, int]:
        """Arguments that an ordinary training loop must give the method.

        Args:
            micro_batches: backward passes of one update.
            max_grad_norm: to which the loop clips the gradients before `step()`; 0 or None if not.

        Raises:
            UnsupportedCombination: clipping where gradients are used up in backward.
        """
        if max_grad_norm and self.timing != "step":
            raise UnsupportedCombination(
                f"max_grad_norm={max_grad_norm}: {self.title} uses up each gradient during "
                "backward, before the norm over all of them is known; set max_grad_norm to 0, or "
                "choose a method that updates at step()"
            )
        return {"micro_batches": micro_batches} if "micro_batches" in self.arguments() else {}

    def chooses(self) -> bool:
        """Whether it leaves some weights to plain Adam: those that `memopt.param_groups` does."""
        return self.kind == "optimizer" and getattr(self.load(), "min_ndim", 0) > 0

    def groups(self, model: nn.Module, targets: Targets = "auto") -> list[dict[str, Any]]:
        """Parameter groups of a model for this method.

        Methods that treat every parameter alike (AdamW, AdamA, LOMO, Lion, ...) have no use for
        ``targets`` and get all parameters in one group; Adam-mini, which treats all too, has a
        partition of its own (`memopt.block_groups`); the others get `memopt.param_groups`.
        """
        if self.kind == "adapter":
            raise UnsupportedCombination(
                f"{self.title} takes the model itself and makes its groups while it adds adapters: "
                f"memopt.create({self.name!r}, model)"
            )
        partition = getattr(self.load(), "partition", None)
        if partition is not None:
            groups: list[dict[str, Any]] = partition(model)
            return groups
        if not self.chooses():
            return [{"params": list(model.named_parameters())}]
        return param_groups(model, targets)

    def build(
        self, model: nn.Module, targets: Targets, arguments: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """The optimizer for a model; an adapter's class changes the model itself."""
        make: Any = self.load()
        if self.kind == "adapter":
            return make(model, targets=targets, **arguments)
        return make(self.groups(model, targets), **arguments)


_ADAPTER_LIMITS = {
    "groups": "it takes the model, not groups; `add_param_group` is there for further parameters",
    "tied": "a weight that two layers share would need one adapter in both",
    "one_dim": "an adapter is a product of two matrices; vectors have plain Adam beside it",
    "accumulation": "not offered: the gradients of adapters are small already",
    "fsdp2": "not tried; a merge would have to gather the shards",
}
_KEPT = "float32, bfloat16, 8-bit"
# reasons of limits that several methods share
_WHOLE = "the update needs the gradient of the whole mini-batch, which no state holds"
_PLAIN = "fewer than two dimensions have no second side; they get plain Adam beside treated weights"
_GONE = "gradients are used during backward: there are none left to clip before `step()`"
_PASSED = "gradients that backward reached before the bad one are already in weights or states"
_TORCH = "torch's own class"
_NARROW = "torch's arithmetic: moments have the weight's dtype, step counts float32"
_TWO_MIXTURES = "its step needs the old momentum and the whole gradient, its state holds one sum"
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        # ---- the four papers and GaLore
        Method(
            "adamw", "AdamW", "memopt.optimizers.adamw:AdamW", "1711.05101",
            "full", "Adam", "weight's dtype", "step", "2mn",
            limits={
                "state_dtype": _NARROW,
            },
        ),
        Method(
            "gwt", "GWT", "memopt.optimizers.gwt:GWT", "2501.07237",
            "Haar approximation band", "Adam", _KEPT, "step", "2m⌈n/2^level⌉ + 1",
            limits={
                "one_dim": _PLAIN,
            },
        ),
        Method(
            "coap", "COAP", "memopt.optimizers.coap:COAP", "2412.00071",
            "correlation-aware projection", "Adam", _KEPT, "step", "2mr + nr",
            limits={
                "one_dim": _PLAIN,
            },
        ),
        Method(
            "adama", "AdamA", "memopt.optimizers.adama:AdamA", "2305.19982",
            "full", "Adam", "float32", "accumulated", "2mn",
            limits={
                "micro_batches": "the method itself: v takes each micro-gradient's square",
                "clipping": _GONE,
                "untouched": _PASSED,
            },
        ),
        Method(
            "lomo", "LOMO", "memopt.optimizers.lomo:LOMO", "2306.09782",
            "full", "SGD", "none", "in backward", "0",
            limits={
                "clipping": f"{_GONE}; `max_norm` clips exactly, in two passes",
                "untouched": _PASSED,
                "accumulation": _WHOLE,
            },
        ),
        Method(
            "adalomo", "AdaLomo", "memopt.optimizers.adalomo:AdaLomo", "2310.10195",
            "full", "Adafactor without momentum", "float32", "in backward", "m + n",
            limits={
                "clipping": f"{_GONE}; `max_norm` clips exactly, in two passes",
                "untouched": _PASSED,
                "accumulation": _WHOLE,
            },
        ),
        Method(
            "galore", "GaLore", "memopt.optimizers.galore:GaLore", "2403.03507",
            "SVD projection", "Adam", _KEPT, "step", "2mr + nr",
            limits={
                "one_dim": _PLAIN,
            },
        ),
        # ---- other projections of the gradient
        Method(
            "fira", "Fira", "memopt.optimizers.fira:Fira", "2410.01623",
            "SVD projection and its residual", "Adam", _KEPT, "step", "2mr + nr + 1",
            limits={
                "one_dim": _PLAIN,
                "accumulation": "the step needs the whole gradient beside the projected one",
            },
        ),
        Method(
            "apollo", "APOLLO", "memopt.optimizers.apollo:APOLLO", "2412.05270",
            "random projection, for scales only", "Adam", _KEPT, "step", "2mr + 1",
            limits={
                "one_dim": _PLAIN,
                "accumulation": "the step needs the whole gradient beside the projected one",
            },
        ),
        Method(
            "apollo_mini", "APOLLO-Mini", "memopt.optimizers.apollo:APOLLOMini", "2412.05270",
            "random projection of rank 1", "Adam", _KEPT, "step", "2m + 1",
            limits={
                "one_dim": _PLAIN,
                "accumulation": "the step needs the whole gradient beside the projected one",
            },
        ),

        Method(
            "flora", "Flora", "memopt.optimizers.flora:Flora", "2402.03293",
            "random projection of the momentum", "Adafactor", _KEPT, "step", "mr + m + n",
            limits={
                "accumulation": (
                    "with `accumulation_rank=r`, which compresses the sum of micro-gradients: "
                    "their own step, not the bits of `step()`"
                ),
            },
        ),
        # ---- low-rank states and random subspaces
        Method(
            "lora_pre", "LoRA-Pre", "memopt.optimizers.lora_pre:LoRAPre", "2602.24283",
            "rank-r factors of both moments", "Adam", _KEPT, "step", "2r(m + n)",
            limits={"one_dim": _PLAIN, "accumulation": _WHOLE},
        ),
        Method(
            "rso", "RSO", "memopt.optimizers.rso:RSO", "2502.07222",
            "random projection, Adam starts anew in each", "Adam", _KEPT, "step", "2mr",
            limits={"one_dim": _PLAIN, "accumulation": _WHOLE},
        ),

        # ---- one number or less for each of Adam's
        Method(
            "adam8bit", "8-bit Adam", "memopt.optimizers.adam8bit:Adam8bit", "2110.02861",
            "full", "Adam", _KEPT, "step", "2mn bytes + 8⌈mn/256⌉ bytes",
            limits={
                "accumulation": "a micro-gradient would be rounded away as it is added",
                "state_dtype": "8-bit codes are the method; float64 weights need "
                "`storage='float32'`",
            },
        ),
        Method(
            "adafactor", "Adafactor", "memopt.optimizers.adafactor:Adafactor", "1804.04235",
            "full", "Adafactor", _KEPT, "step", "m + n, with beta1 mn + m + n",
            limits={"accumulation": _WHOLE},
        ),
        Method(
            "adams", "AdamS", "memopt.optimizers.adams:AdamS", "2505.16363",
            "full", "momentum over its own root mean square", _KEPT, "step", "mn",
            limits={"accumulation": _TWO_MIXTURES},
        ),
        Method(
            "lion", "Lion", "memopt.optimizers.lion:Lion", "2302.06675",
            "full", "sign of momentum", _KEPT, "step", "mn",
            limits={"accumulation": _TWO_MIXTURES},
        ),
        Method(
            "sgd", "SGD", "memopt.optimizers.sgd:SGD",
            "https://proceedings.mlr.press/v28/sutskever13.html", "full", "SGD", _KEPT, "step",
            "0, with momentum mn",
            limits={
                "accumulation": "without momentum there is no state to take a micro-gradient; "
                "with `momentum=` there is, and it does",
            },
        ),

        # ---- matrix-wise methods and blocks
        Method(
            "muon", "Muon", "memopt.optimizers.muon:Muon", "https://kellerjordan.github.io/posts/muon/",
            "full", "momentum, orthogonalised", _KEPT, "step", "mn",
            limits={"one_dim": _PLAIN, "accumulation": _WHOLE},
        ),
        Method(
            "adam_mini", "Adam-mini", "memopt.optimizers.adam_mini:AdamMini", "2406.16793",
            "full", "Adam, v of blocks", _KEPT, "step", "mn + blocks",
            limits={"accumulation": _WHOLE},
        ),
        Method(
            "foam", "FOAM", "memopt.optimizers.foam:FOAM", "2512.07112",
            "block means", "Adam", _KEPT, "step", "2m⌈n/2^level⌉",
            limits={"one_dim": _PLAIN, "accumulation": _WHOLE},
        ),

        # ---- adapters
        Method(
            "lora", "LoRA", "memopt.adapters.lora:LoRA", "2106.09685",
            "added A and B of rank r", "Adam", _KEPT, "step", "2r(m + n), and r(m + n) weights",
            kind="adapter", limits=_ADAPTER_LIMITS,
        ),
        Method(
            "relora", "ReLoRA", "memopt.adapters.relora:ReLoRA", "2307.05695",
            "added A and B of rank r, merged", "Adam", _KEPT, "step",
            "2r(m + n), and r(m + n) weights", kind="adapter", limits=_ADAPTER_LIMITS,
        ),

        # ---- several processes
        Method(
            "zero1_adamw", "ZeRO-1 AdamW", "memopt.optimizers.zero1_adamw:ZeRO1AdamW",
            "1910.02054", "full", "Adam", "weight's dtype", "step", "2mn / processes",
            kind="distributed",
            limits={
                "accumulation": "torch's own: its update needs the whole gradient",
                "in_backward": "the update ends with broadcasts that all processes must join",
                "fsdp2": "FSDP2 shards the states itself: use adamw",
                "maximize": "not among its arguments; turn the loss around",
                "copies": f"{_TORCH} can be neither copied nor pickled",
                "state_dtype": _NARROW,
                "foreign_state": f"{_TORCH} loads whatever has as many parameters",
                "group_keys": f"{_TORCH} takes any key",
                "nonfinite": f"{_TORCH} has no policy: NaN goes into weights and states",
                "untouched": f"{_TORCH} has no policy: NaN goes into weights and states",
                "trainer": "Trainer reads the state before it can be collected from all processes",
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
        ValueError: unknown method or argument (with the nearest), no value for one without a
            default (LOMO's lr), or nothing to treat.
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
    for argument, default in known.items():
        if default is inspect.Parameter.empty and argument not in arguments:
            raise ValueError(f"{name} has no default for {argument}: pass {argument}=...")
    return method.build(model, targets, arguments)
