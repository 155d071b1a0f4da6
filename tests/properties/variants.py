"""Every optimizer of the catalog in small, options beyond the defaults, and a small problem."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from memopt import catalog

Variant = tuple[str, dict[str, Any]]

# Arguments of the whole field, by name, in sizes for weights of a dozen rows and for runs of a few
# steps. A method takes those that it has.
SMALL = {
    "rank": 3,
    "level": 2,
    "update_interval": 3,
    "recalibrate_every": 2,
    "restart_warmup": 0,
    "dropout": 0.0,  # of adapters; draws from the global generator
}


def small(method: catalog.Method) -> dict[str, Any]:
    """Arguments for small weights: `SMALL`, and a rate where the method has no default."""
    known = method.arguments()
    needed = {"lr": 0.01} if known.get("lr") is inspect.Parameter.empty else {}
    if method.kind == "adapter":
        needed["update_interval"] = 4  # a merge, but not yet in tests of three steps
    return {key: value for key, value in {**SMALL, **needed}.items() if key in known}


PLAIN: dict[str, Variant] = {
    name: (name, small(method))
    for name, method in catalog.METHODS.items()
    if method.kind == "optimizer"
}
"""Every optimizer of the catalog, its defaults but for the sizes."""

VARIANTS: dict[str, Variant] = {
    "gwt level 0": ("gwt", {"level": 0, "norm_growth_limit": None}),
    "gwt safe first": ("gwt", {"level": 1, "details": "safe", "axis": "first"}),
    "gwt db2": ("gwt", {"level": 2, "wavelet": "db2", "axis": "cheapest"}),
    "gwt largest": ("gwt", {"level": 1, "selection": "largest", "selection_interval": 3}),
    "gwt adafactor": ("gwt", {"level": 1, "rule": "adafactor"}),
    "gwt adam_mini": ("gwt", {"level": 1, "rule": "adam_mini"}),
    "gwt muon": ("gwt", {"level": 1, "rule": "muon"}),
    "galore, refresh on resume": ("galore", {"rank": 3, "update_interval": 5}),
    "galore left": ("galore", {"rank": 3, "update_interval": 2, "side": "left"}),
    "galore adafactor": ("galore", {"rank": 3, "update_interval": 3, "rule": "adafactor"}),
    "galore adam_mini": ("galore", {"rank": 3, "update_interval": 3, "rule": "adam_mini"}),
    "galore muon": ("galore", {"rank": 3, "update_interval": 3, "rule": "muon"}),
    "coap, refresh on resume": ("coap", {"rank": 3, "update_interval": 5, "recalibrate_every": 2}),
    "coap, recalibration on resume": (
        "coap", {"rank_ratio": 2.0, "update_interval": 5, "recalibrate_every": 1},
    ),
    "coap normalised rotated": (
        "coap",
        {
            "rank": 3, "update_interval": 2, "recalibrate_every": 3, "rotate_moments": True,
            "correlation_update": "normalised",
        },
    ),
    "coap adafactor": ("coap", {"rank": 3, "update_interval": 3, "rule": "adafactor"}),
    "coap adam_mini": ("coap", {"rank": 3, "update_interval": 3, "rule": "adam_mini"}),
    "coap muon": ("coap", {"rank": 3, "update_interval": 3, "rule": "muon"}),
    "fira paper left": (
        "fira", {"rank": 3, "update_interval": 5, "residual": "paper", "side": "left"},
    ),
    "apollo, new projection on resume": ("apollo", {"rank": 3, "update_interval": 5}),
    "apollo kept": ("apollo", {"rank": 3, "update_interval": 3, "keep_projection": True}),
    "apollo svd right": (
        "apollo", {"rank": 3, "update_interval": 3, "projection": "svd", "side": "right"},
    ),
    "flora paper, new projection on resume": (
        "flora", {"lr": 0.01, "rank": 3, "update_interval": 5, "momentum": "paper"},
    ),
    "flora without momentum": ("flora", {"lr": 0.01, "beta1": None, "scale_parameter": False}),
    "muon reference": ("muon", {"precision": "bfloat16", "nesterov": False, "adam_scale": 0.5}),
    "adam_mini tensor": ("adam_mini", {"block": "tensor"}),
    "foam paper": ("foam", {"level": 1, "second_moment": "paper", "residual_scale": 0.5}),
    "adafactor momentum": ("adafactor", {"lr": 1e-2, "beta1": 0.9, "scale_parameter": False}),
    "adams corrected": ("adams", {"bias_correction": True}),
    "sgd momentum": ("sgd", {"momentum": 0.9}),
    "sgd nesterov": ("sgd", {"momentum": 0.9, "nesterov": True}),
    "lora_pre new factors": ("lora_pre", {"rank": 9, "factors": "new", "damping": 1e-2}),
    "rso, new projection on resume": ("rso", {"rank": 3, "update_interval": 5}),
    "rso haar kept proximal": (
        "rso",
        {
            "rank": 3, "update_interval": 3, "distribution": "haar", "keep_projection": True,
            "proximal": 0.1, "side": "std",
        },
    ),
}  # fmt: skip
"""Options beyond the defaults: name to catalog method and arguments. Intervals of 5 put a refresh
right after the step at which the tests of resumption stop."""

EVERY = {**PLAIN, **VARIANTS}

STORAGES = ("float32", "bfloat16", "8bit")
# width not divisible by 4, both orientations, a convolution, and what is never treated
SHAPES = {"tall": (12, 7), "wide": (6, 14), "kernel": (8, 3, 2, 2), "vector": (5,), "scalar": ()}


def build(variant: Variant, params: Any, **arguments: Any) -> Any:
    """The optimizer of a variant."""
    method, own = variant
    return catalog.get(method).load()(params, **{**own, **arguments})


def ordinary(optimizer: Any) -> Any:
    """The optimizer without the timing in backward that some methods have from the start."""
    if getattr(optimizer, "timing", None) is not None:
        optimizer.timing.remove()
    return optimizer


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, nn.Parameter]:
    """One parameter of each of `SHAPES`, the same for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: nn.Parameter(torch.randn(shape, generator=draw).to(dtype))
        for name, shape in SHAPES.items()
    }


def pull(params: dict[str, nn.Parameter], step: int) -> None:
    """Puts the gradient of a noisy quadratic at the present weights into ``.grad``."""
    draw = torch.Generator().manual_seed(1000 + step)
    for param in params.values():
        noise = torch.randn(param.shape, generator=draw)
        param.grad = (0.3 * param.detach() + noise.to(param.dtype)).detach()


def tensors(state: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Named tensors of one parameter's state."""
    yield from ((key, value) for key, value in state.items() if isinstance(value, Tensor))
