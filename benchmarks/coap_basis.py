"""How far one update by Eq. 5 moves COAP's basis, at the gradients of a LLaMA run.

    python -m experiments.data prepare DATASET.yaml DATA
    python benchmarks/coap_basis.py DATA --shape llama_60m --steps 33

Trains the named shape from random weights with AdamW. Every treated matrix has a basis sketched at
the first gradient and the moment that COAP would keep; at the last step Eq. 5 is applied in each
variant and the movement of P is measured, in float32 and as it survives in bfloat16.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor

import memopt
from experiments.data import load_tokens
from memopt.accounting import shapes
from memopt.seeds import generator
from memopt.subspaces import correlation

BETA1 = 0.9


class Watched:
    """One matrix with its basis and projected moment, in the orientation m >= n."""

    def __init__(self, name: str, param: Tensor, rank: int) -> None:
        self.param, self.rank = param, rank
        self.sketch = torch.randn(min(param.shape), rank, generator=generator(3407, name, 0))
        self.basis = self.exp_avg = None

    @property
    def transposed(self) -> bool:
        """Whether the gradient has fewer rows than columns."""
        return self.param.shape[0] < self.param.shape[1]

    @property
    def grad(self) -> Tensor:
        """The gradient with its longer side first."""
        return self.param.grad.T if self.transposed else self.param.grad

    def follow(self) -> None:
        """Updates the moment; the first gradient makes the basis."""
        if self.basis is None:
            self.basis = correlation.sketch_basis(self.grad, self.sketch)
            self.exp_avg = torch.zeros(len(self.grad), self.rank)
        self.exp_avg.lerp_(self.grad @ self.basis, 1 - BETA1)

    def moved(self, variant: str) -> dict[str, float]:
        """Relative movement of P, share of bfloat16 entries that change, fall of the objective."""
        arguments = {"transposed": self.transposed}
        new = correlation.correlation_step(
            self.grad, self.basis, self.exp_avg, variant=variant, **arguments
        )
        unit = correlation.unit_rms(self.grad), correlation.unit_rms(self.exp_avg)
        before, after = (
            float(correlation.objective(unit[0], basis, unit[1], **arguments))
            for basis in (self.basis, new)
        )
        return {
            "movement": float((new - self.basis).norm() / self.basis.norm()),
            "changed": float((new.bfloat16() != self.basis.bfloat16()).double().mean()),
            "fall": 1 - after / before,
        }


def main() -> None:
    """Trains, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="a folder made by experiments.data prepare")
    parser.add_argument("--shape", default="llama_60m", choices=shapes.names())
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--steps", type=int, default=33)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = load_tokens(options.data)
    config = {**shapes.named(options.shape), "vocab_size": data.vocab_size}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    optimizer = memopt.create("adamw", model, lr=options.lr)
    watched = [
        Watched(name, param, options.rank)
        for name, param in memopt.param_groups(model)[0]["params"]
    ]
    for step in range(options.steps):
        rows = range(step * options.batch, (step + 1) * options.batch)
        tokens = torch.stack([torch.as_tensor(data.train[row]["input_ids"]) for row in rows])
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if step < options.steps - 1:
            for matrix in watched:
                matrix.follow()
            optimizer.step()
    scale = torch.tensor([float(matrix.grad.square().mean().sqrt()) for matrix in watched])
    table = Table(
        title=f"{options.shape}, r {options.rank}, {len(watched)} matrices, step {options.steps}, "
        f"loss {float(loss.detach()):.2f}, RMS of G {scale.min():.0e} to {scale.max():.0e}"
    )
    for heading in ("variant", "|dP| / |P|", "(largest)", "bf16 entries changed", "objective"):
        table.add_column(heading, justify="right")
    for variant in correlation.CORRELATION_UPDATES:
        moved = [matrix.moved(variant) for matrix in watched]
        movement = torch.tensor([each["movement"] for each in moved])
        changed = torch.tensor([each["changed"] for each in moved])
        fall = torch.tensor([each["fall"] for each in moved])
        table.add_row(
            variant,
            f"{movement.median():.1e}",
            f"{movement.max():.1e}",
            f"{changed.median():.1%}",
            f"{-fall.median():+.2%}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
