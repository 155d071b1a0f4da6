"""Which parameters a method treats, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from memopt.errors import unknown

Targets = str | Iterable[str] | Callable[[str, nn.Parameter], bool]
MATRIX_MODULES = (nn.Linear, nn.modules.conv._ConvNd)


class ParameterGroups(list[dict[str, Any]]):
    """The two groups of `param_groups`, with the reason for each parameter.

    Attributes:
        reasons: parameter name to the reason why it is treated or left to plain Adam.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], reasons: dict[str, str]) -> None:
        super().__init__(groups)
        self.reasons = reasons

    def describe(self) -> str:
        """One line a parameter: treated or plain, shape, name, reason."""
        lines = [
            f"{'treated' if group['treated'] else 'plain':8}{tuple(param.shape)!s:16} {name}: "
            f"{self.reasons[name]}"
            for group in self
            for name, param in group["params"]
        ]
        return "\n".join(lines)


def param_groups(model: nn.Module, targets: Targets = "auto") -> ParameterGroups:
    """Splits a model's parameters into those that a method treats and the rest.

    Args:
        model: any module. Frozen parameters are included (they are updated once they thaw), tied
            ones once.
        targets: ``"auto"``: weights of linear and convolution layers inside repeated blocks (an
            ``nn.ModuleList``; all such layers if the model has no list), without the output head
            and weights tied to an embedding: attention and MLP of a transformer, as GaLore, GWT and
            COAP choose. ``"all-linear"``: those layers wherever they stand, without the output
            head. A list of strings: parameters of two or more dimensions, in any kind of layer but
            embeddings, whose module name contains one of them. Or a function of name and parameter.

    Returns:
        Two groups for any memopt optimizer, ``treated`` True and False, with named parameters; an
        empty one is left out.

    Raises:
        ValueError: unknown ``targets`` word, a string that is part of no name, or nothing matches.
        TypeError: not a model, or ``targets`` of another kind.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"param_groups wants the model, got a {type(model).__name__}")
    reasons: dict[str, str] = {}
    treated: list[tuple[str, nn.Parameter]] = []
    plain: list[tuple[str, nn.Parameter]] = []
    choose = _chooser(model, targets)
    for name, param in model.named_parameters():
        chosen, reasons[name] = choose(name, param)
        (treated if chosen else plain).append((name, param))
    if not treated:
        raise ValueError(
            f"targets={targets!r} match no parameter of {type(model).__name__} with two or more "
            "dimensions; give module-name parts such as ['attn', 'mlp'], or 'all-linear'."
        )
    groups = [{"params": treated, "treated": True}]
    if plain:
        groups.append({"params": plain, "treated": False})
    return ParameterGroups(groups, reasons)


def _refuse_misspelt(parts: Iterable[str], model: nn.Module) -> None:
    names = [name.removesuffix(".weight") for name, _ in model.named_parameters()]
    for part in parts:
        if not any(part in name for name in names):
            words = {word for name in names for word in name.split(".") if not word.isdigit()}
            raise unknown("target", part, words)


def _chooser(model: nn.Module, targets: Targets) -> Callable[[str, nn.Parameter], tuple[bool, str]]:
    if callable(targets):
        return lambda name, param: (bool(targets(name, param)), "chosen by the targets function")
    if isinstance(targets, str) and targets not in ("auto", "all-linear"):
        raise ValueError(
            f"targets={targets!r}: expected 'auto', 'all-linear', a list or a function"
        )
    if not isinstance(targets, Iterable):
        raise TypeError(
            f"targets must be 'auto', 'all-linear', a list or a function, got {targets!r}"
        )
    parts = None if isinstance(targets, str) else tuple(targets)
    _refuse_misspelt(parts or (), model)
    matrices = {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if isinstance(module, MATRIX_MODULES)
    }
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    blocks = [f"{name}." for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    in_blocks_only = targets == "auto" and any(n.startswith(tuple(blocks)) for n in matrices)

    def choose(name: str, param: nn.Parameter) -> tuple[bool, str]:
        if id(param) in embeddings:
            return False, "embedding (or tied to one)"
        if param.ndim < 2:
            return False, f"{param.ndim}-D"
        if parts is not None:
            module_name = name.removesuffix(".weight")
            found = next((part for part in parts if part in module_name), None)
            return found is not None, f"matches {found!r}" if found else "matches no target"
        if name not in matrices:
            return False, "not the weight of a linear or convolution layer"
        if head is not None and param is getattr(head, "weight", None):
            return False, "output head"
        if in_blocks_only and not name.startswith(tuple(blocks)):
            return False, "outside the repeated blocks"
        return (
            True,
            "layer of a repeated block" if in_blocks_only else "linear or convolution layer",
        )

    return choose
