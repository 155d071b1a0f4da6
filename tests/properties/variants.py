"""The variants of the core optimizers that the laws of state are tried on, and a small problem."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import memopt

Variant = tuple[str, dict[str, Any]]

VARIANTS: dict[str, Variant] = {
    "gwt": ("gwt", {"level": 2}),
    "gwt level 0": ("gwt", {"level": 0, "norm_growth_limit": None}),
    "gwt safe first": ("gwt", {"level": 1, "details": "safe", "axis": "first"}),
    "gwt db2": ("gwt", {"level": 2, "wavelet": "db2", "axis": "cheapest"}),
    "gwt largest": ("gwt", {"level": 1, "selection": "largest", "selection_interval": 3}),
    "gwt adafactor": ("gwt", {"level": 1, "rule": "adafactor"}),
    "gwt adam_mini": ("gwt", {"level": 1, "rule": "adam_mini"}),
    "gwt muon": ("gwt", {"level": 1, "rule": "muon"}),
    "galore": ("galore", {"rank": 3, "update_interval": 3}),
    "galore, refresh on resume": ("galore", {"rank": 3, "update_interval": 5}),
    "galore left": ("galore", {"rank": 3, "update_interval": 2, "side": "left"}),
    "galore adafactor": ("galore", {"rank": 3, "update_interval": 3, "rule": "adafactor"}),
    "galore adam_mini": ("galore", {"rank": 3, "update_interval": 3, "rule": "adam_mini"}),
    "galore muon": ("galore", {"rank": 3, "update_interval": 3, "rule": "muon"}),
    "coap": ("coap", {"rank": 3, "update_interval": 2, "recalibrate_every": 2}),
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
    "fira": ("fira", {"rank": 3, "update_interval": 3}),
    "fira paper left": (
        "fira", {"rank": 3, "update_interval": 5, "residual": "paper", "side": "left"},
    ),
    "apollo": ("apollo", {"rank": 3, "update_interval": 3}),
    "apollo, new projection on resume": ("apollo", {"rank": 3, "update_interval": 5}),
    "apollo kept": ("apollo", {"rank": 3, "update_interval": 3, "keep_projection": True}),
    "apollo svd right": (
        "apollo", {"rank": 3, "update_interval": 3, "projection": "svd", "side": "right"},
    ),
    "apollo mini": ("apollo_mini", {"update_interval": 3}),
    "flora": ("flora", {"lr": 0.01, "rank": 3, "update_interval": 3}),
    "flora paper, new projection on resume": (
        "flora", {"lr": 0.01, "rank": 3, "update_interval": 5, "momentum": "paper"},
    ),
    "flora without momentum": ("flora", {"lr": 0.01, "beta1": None, "scale_parameter": False}),
    "muon": ("muon", {}),
    "muon reference": ("muon", {"precision": "bfloat16", "nesterov": False, "adam_scale": 0.5}),
    "adam_mini": ("adam_mini", {}),
    "adam_mini tensor": ("adam_mini", {"block": "tensor"}),
    "foam": ("foam", {"level": 2}),
    "foam paper": ("foam", {"level": 1, "second_moment": "paper", "residual_scale": 0.5}),
    "adam8bit": ("adam8bit", {}),
    "adafactor": ("adafactor", {"lr": 1e-2}),
    "adafactor momentum": ("adafactor", {"lr": 1e-2, "beta1": 0.9, "scale_parameter": False}),
    "adams": ("adams", {}),
    "adams corrected": ("adams", {"bias_correction": True}),
    "lion": ("lion", {}),
    "sgd": ("sgd", {}),
    "sgd momentum": ("sgd", {"momentum": 0.9}),
    "sgd nesterov": ("sgd", {"momentum": 0.9, "nesterov": True}),
    "lora_pre": ("lora_pre", {"rank": 3}),
    "lora_pre new factors": ("lora_pre", {"rank": 9, "factors": "new", "damping": 1e-2}),
    "rso": ("rso", {"rank": 3, "update_interval": 3}),
    "rso, new projection on resume": ("rso", {"rank": 3, "update_interval": 5}),
    "rso haar kept proximal": (
        "rso",
        {
            "rank": 3, "update_interval": 3, "distribution": "haar", "keep_projection": True,
            "proximal": 0.1, "side": "std",
        },
    ),
}  # fmt: skip
"""Name to catalog method and arguments; intervals put the fifth step on and off a refresh."""

# one variant a method, where the law does not depend on the method's inside
METHODS = {name: VARIANTS[name] for name in ("gwt", "galore", "coap", "muon", "foam")}

STORAGES = ("float32", "bfloat16", "8bit")
# width not divisible by 4, both orientations, a convolution, and what is never treated
SHAPES = {"tall": (12, 7), "wide": (6, 14), "kernel": (8, 3, 2, 2), "vector": (5,), "scalar": ()}


def build(variant: Variant, params: Any, **arguments: Any) -> Any:
    """The optimizer of a variant."""
    method, own = variant
    return memopt.catalog.get(method).load()(params, **{**own, **arguments})


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
