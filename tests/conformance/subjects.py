"""What the laws are tried on: every method of the catalog, a small model, and a training of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import memopt
from memopt import catalog
from tests.properties import variants


@dataclass(frozen=True)
class Subject:
    """A method with arguments for small weights, and how it is started."""

    name: str
    method: catalog.Method
    arguments: dict[str, Any] = field(default_factory=dict)

    def start(self, model: nn.Module | None = None, **arguments: Any) -> Training:
        """The method on a model of its own (`Net` by default)."""
        return Training(self, Net() if model is None else model, arguments)


class Training:
    """A model, its optimizer, and the steps of an ordinary loop."""

    def __init__(self, subject: Subject, model: nn.Module, arguments: dict[str, Any]) -> None:
        self.model = model
        self.optimizer: Any = memopt.create(
            subject.method.name, model, **{**subject.arguments, **arguments}
        )

    def loss(self, step: int, batch: slice = slice(None)) -> Tensor:
        """The loss on the batch of a step."""
        return self.model(inputs(step, next(self.model.parameters()).dtype)[batch]).square().mean()

    def run(self, steps: range) -> Training:
        """Backward, step, zero_grad."""
        for step in steps:
            self.loss(step).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def saved(self) -> dict[str, Any]:
        """The optimizer's checkpoint; a divided one is collected first."""
        if hasattr(self.optimizer, "consolidate_state_dict"):
            self.optimizer.consolidate_state_dict()
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def mover(self, name: str) -> str:
        """Name of the parameter that moves a weight of the model: itself, or its adapter's B."""
        if name in dict(self.model.named_parameters()):
            return name
        layer, _, kind = name.rpartition(".")
        return f"{layer}.{'lora_B.default' if kind == 'weight' else 'base_layer'}.{kind}"

    def trained(self) -> set[str]:
        """Names of the parameters that may move."""
        return {name for name, param in self.model.named_parameters() if param.requires_grad}

    def values(self) -> dict[str, Tensor]:
        """Copies of all parameters by name."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def states(self) -> dict[str, dict[str, Any]]:
        """The state of each parameter that has one, by name."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {names[id(p)]: state for p, state in self.optimizer.state.items() if state}

    def everything(self) -> dict[str, Tensor]:
        """Copies of all parameters and of all tensors of their states."""
        kept = {
            f"{name}: {key}": value.clone()
            for name, state in self.states().items()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
        return self.values() | kept


class Net(nn.Module):
    """A convolution, a tall and a wide matrix, vectors and a number; widths odd, none alike.

    Weights follow from their names, so that the order of the parts and further parts change none.

    Args:
        parts: names of the parts in the order in which they are registered.
    """

    PARTS = ("kernel", "tall", "wide", "norm", "scale")

    def __init__(self, parts: tuple[str, ...] = PARTS) -> None:
        super().__init__()
        made = {
            "kernel": lambda: nn.Conv2d(3, 7, 2, bias=False),
            "tall": lambda: nn.Linear(7, 12),
            "wide": lambda: nn.Linear(14, 6, bias=False),
            "norm": lambda: nn.LayerNorm(6),
            "scale": lambda: nn.Parameter(torch.tensor(0.0)),
            "unused": lambda: nn.Linear(9, 9),
        }
        for part in parts:
            setattr(self, part, made[part]())
        for name, param in self.named_parameters():
            draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            with torch.no_grad():
                param.copy_(0.3 * torch.randn(param.shape, generator=draw))

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 3, 4, 4) to six numbers each, with noise from the images' first pixels."""
        hidden = self.tall(self.kernel(x).mean((2, 3)))
        hidden = torch.cat([torch.tanh(hidden), x[:, :2, 0, 0]], 1)
        return self.norm(self.wide(hidden)) * (1 + self.scale) - x[:, 0, :2, :3].flatten(1)


def inputs(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The batch of a step: eight images."""
    draw = torch.Generator().manual_seed(1000 + step)
    return torch.randn(8, 3, 4, 4, generator=draw).to(dtype)


def tiny_llama() -> nn.Module:
    """A LLaMA of one layer with a tied head, the same each time; for Trainer."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=12,
        intermediate_size=18,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two sets of values are equal to the bit."""
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the values that are not what they were."""
    return {name for name in before if not torch.equal(before[name], after[name])}


METHODS = {
    name: Subject(name, method, variants.small(method)) for name, method in catalog.METHODS.items()
}
VARIANTS = {
    name: Subject(name, catalog.get(method), arguments)
    for name, (method, arguments) in variants.VARIANTS.items()
}
