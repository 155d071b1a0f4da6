"""Small models whose parameters cover what an engine can meet, and one plain training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import memopt

IN_BACKWARD = ("lomo", "adalomo")
METHODS = {
    "adamw": {},
    "gwt": {"level": 1},
    "coap": {"rank": 4, "update_interval": 3, "recalibrate_every": 2},
    "galore": {"rank": 4, "update_interval": 3},
    "adama": {},
    "lomo": {},
    "adalomo": {},
}


class Net(nn.Module):
    """Tied embedding and head, a convolution, a norm, a scalar, and a branch that may be unused."""

    def __init__(self, width: int = 8, vocabulary: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolution = nn.Conv1d(width, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.branch = nn.Linear(width, width)
        self.use_branch = True

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = hidden + self.convolution(hidden.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden)) * self.scale
        if self.use_branch:
            hidden = hidden + self.branch(hidden)
        return self.norm(hidden) @ self.embedding.weight.T


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(seed)
    return Net().to(dtype)


def batches(count: int, rows: int = 8, seed: int = 5) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 12, (rows, 6), generator=draw) for _ in range(count)]


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[Tensor],
    micro_batches: int = 1,
    after_step: Callable[[], Any] = lambda: None,
) -> None:
    """The ordinary loop, for every optimizer and timing."""
    for tokens in data:
        for part in tokens.chunk(micro_batches):
            (loss_of(model, part) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def build(name: str, model: nn.Module, **arguments: Any) -> torch.optim.Optimizer:
    """A method by name, with arguments that suit the toy."""
    return memopt.create(name, model, lr=0.02, **METHODS[name], **arguments)


def ordinary(name: str, model: nn.Module, **arguments: Any) -> torch.optim.Optimizer:
    """The same, updating in ``step()``."""
    optimizer = build(name, model, **arguments)
    if getattr(optimizer, "timing", None) is not None:
        optimizer.timing.remove()
    return optimizer


def steps_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return {int(state["step"]) for state in optimizer.state.values()}


def same(model: nn.Module, other: nn.Module) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)
