"""RSO in layers: the inputs of a layer are kept for backward in rank r (arXiv 2502.07222)."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import nn

from memopt.adapters import layers
from memopt.adapters.lora import AdapterCommon
from memopt.adapters.relora import ReLoRA
from memopt.params import Targets
from memopt.subspaces.random import gaussian


class RSOLayers(ReLoRA):
    """`memopt.RSO` with ``y = x (W_k + B P^T)^T`` in the layers, W_k and P fixed within T updates.

    The gradient of B is ``dy^T (x P)``, so backward needs x P (r numbers a row) and neither x nor
    a gradient of W. As an adapter: A is ``P^T``, frozen and Gaussian, the product counts once, and
    a merge ends the outer step. Same P and same weights as `memopt.RSO` without weight decay,
    which would fall on B here.

    State per m x n weight: ``2 m r``; weights ``r (m + n)`` more: B and P.

    Args:
        model: see `memopt.LoRA`.
        lr: learning rate.
        update_interval: T, inner steps of one outer step.
        targets: linear layers, as in `memopt.param_groups`.
        **common: see `AdapterCommon`; ``adapter_seed`` is RSO's ``projection_seed``. There is no
            ``alpha`` and no ``dropout``.

    Raises:
        ModuleNotFoundError: peft is not installed.
        ValueError: a bad argument; a target that cannot have an adapter.
    """

    common_defaults = {**ReLoRA.common_defaults, "alpha": None, "dropout": 0.0}

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-2,
        *,
        update_interval: int = 200,
        targets: Targets = "auto",
        **common: Unpack[AdapterCommon],
    ) -> None:
        for argument in ("alpha", "dropout"):
            if argument in common:
                raise ValueError(f"RSO has no {argument}: the product B P^T counts once, as it is")
        common["alpha"] = common.get("rank", self.common_defaults["rank"])
        super().__init__(
            model,
            lr,
            update_interval=update_interval,
            restart_warmup=0,
            targets=targets,
            **common,
        )

    @torch.no_grad()
    def _start(self, name: str, layer: Any, number: int) -> None:
        """A new subspace: A = P^T from the key of `memopt.RSO`, B zero."""
        down, up, _ = layers.weights(layer)
        up.zero_()
        down.requires_grad_(False)
        rank, length = down.flatten(1).shape
        draw = gaussian(length, rank, self._seed, f"{name}.weight", number, like=down)
        down.copy_(draw.T.reshape(down.shape))
