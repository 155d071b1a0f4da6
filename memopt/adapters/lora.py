"""LoRA: low-rank adapters on frozen weights (Hu et al., arXiv 2106.09685), trained by Adam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor, nn

from memopt.adapters import layers
from memopt.errors import unknown
from memopt.optimizers.arguments import COMMON_DEFAULTS, Common, positive, whole
from memopt.optimizers.base import MemoptOptimizer
from memopt.params import Targets
from memopt.rules import adam
from memopt.states import Buffer

REST = ("adam", "frozen")


class AdapterCommon(Common, total=False):
    """Arguments that adapters take beside their own; the first five are fixed once they are made.

    Attributes:
        rank: r of A (r x n) and B (m x r); default 128.
        alpha: the product B A counts ``alpha / rank`` times; default 32.
        dropout: share of a layer's inputs that its adapter does not see in training; default 0.05.
        rest: the parameters without an adapter (embeddings, head, norms, biases): ``"adam"``
            (default) trains those that were trainable, in the same optimizer and at the same rate,
            as all methods here do; ``"frozen"`` trains adapters alone, as LoRA's paper; a list of
            name parts (``["classifier"]``) trains those and freezes the others.
        adapter_seed: of A; default 0.
        betas: Adam's; default (0.9, 0.999).
        eps: Adam's; default 1e-8.
        storage: of the adapters' moments: ``"float32"`` (default), ``"bfloat16"`` or ``"8bit"``.
    """

    rank: int
    alpha: float
    dropout: float
    rest: str | Iterable[str]
    adapter_seed: int
    betas: tuple[float, float]
    eps: float
    storage: str


class Adapted(MemoptOptimizer):
    """What LoRA and ReLoRA share: adapters in the model, Adam on them and on the rest.

    The frozen weights stand in the group of the rest: they wait there as every frozen parameter
    does. If an argument is refused, the model is left as it was.
    """

    suitable = "an adapter"
    common_defaults = {
        **COMMON_DEFAULTS,
        "rank": 128,
        "alpha": 32.0,
        "dropout": 0.05,
        "rest": "adam",
        "adapter_seed": 0,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "storage": "float32",
    }

    def __init__(
        self,
        model: nn.Module,
        targets: Targets,
        defaults: dict[str, Any],
        **common: Unpack[AdapterCommon],
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"{type(self).__name__} takes the model to which it adds adapters, "
                f"not a {type(model).__name__}"
            )
        own: dict[str, Any] = {**self.common_defaults, **common}
        _check(own)
        trainable = {id(param): param.requires_grad for param in model.parameters()}
        self.adapters = layers.inject(
            model,
            targets,
            rank=own["rank"],
            alpha=own["alpha"],
            dropout=own["dropout"],
        )
        self._seed = own["adapter_seed"]
        try:
            for name, layer in self.adapters:
                self._start(name, layer, 0)
            groups = _groups(model, self.adapters, own["rest"], trainable)
            super().__init__(groups, defaults, **common)  # type: ignore[misc]
        except Exception:
            layers.remove(model)
            for param in model.parameters():
                param.requires_grad_(trainable[id(param)])
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "adapters": self.adapters, "_seed": self._seed}

    def _start(self, name: str, layer: Any, number: int) -> None:
        """New initial values of one adapter, after ``number`` merges."""
        layers.start(layer, self._seed, name, number)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Adam's two moments of A or B."""
        return adam.buffers(shape)

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """Adam on A or B, as on the rest."""
        return self._plain_update(grad, state, group)


class LoRA(Adapted):
    """``W0 + (alpha / r) B A`` with W0 frozen; Adam on A and B.

    Args:
        model: is changed: adapters are added to its targets and the weights below frozen.
            `memopt.merge_adapters` gives the ordinary model back.
        lr: learning rate of adapters and rest.
        targets: which layers get adapters, as in `memopt.param_groups`.
        **common: see `AdapterCommon`.

    Raises:
        ModuleNotFoundError: peft is not installed.
        ValueError: a bad argument; a target that cannot have an adapter.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        *,
        targets: Targets = "auto",
        **common: Unpack[AdapterCommon],
    ) -> None:
        super().__init__(model, targets, {"lr": lr}, **common)


def _check(own: dict[str, Any]) -> None:
    """Raises ``ValueError`` for a value of which peft would make something else."""
    whole(own, "rank", least=1)
    positive(own, "alpha")
    positive(own, "dropout", zero=True)
    if own["dropout"] >= 1:
        raise ValueError(f"dropout must be below 1, got {own['dropout']!r}")
    if isinstance(own["rest"], str) and own["rest"] not in REST:
        raise unknown("rest", own["rest"], REST)


def _groups(
    model: nn.Module,
    adapters: layers.Adapters,
    rest: str | Iterable[str],
    trainable: dict[int, bool],
) -> list[dict[str, Any]]:
    """Adapters and all other parameters; thaws those of the rest that are to be trained."""
    ours = {id(param) for _, layer in adapters for param in layers.weights(layer)[:2]}
    bases = {id(layers.weights(layer)[2]) for _, layer in adapters}
    parts = None if isinstance(rest, str) else tuple(rest)
    treated: list[tuple[str, nn.Parameter]] = []
    others: list[tuple[str, nn.Parameter]] = []
    for name, param in model.named_parameters():
        (treated if id(param) in ours else others).append((name, param))
    for part in parts or ():
        if not any(part in name for name, _ in others):
            words = {word for name, _ in others for word in name.split(".") if not word.isdigit()}
            raise unknown("part of a name in rest", part, words)
    for name, param in others:
        chosen = rest == "adam" if parts is None else any(part in name for part in parts)
        param.requires_grad_(chosen and trainable[id(param)] and id(param) not in bases)
    groups = [{"params": treated, "treated": True}, {"params": others, "treated": False}]
    return [group for group in groups if group["params"]]
