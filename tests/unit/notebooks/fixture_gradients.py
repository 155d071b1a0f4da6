"""A made-up table of gradients, measured of drawn matrices; see `fixture_tables`."""

from __future__ import annotations

import pandas as pd
import torch

from experiments import gradients

STEPS = (1, 10, 100)
WEIGHTS = [  # name, shape, whether it is treated
    ("model.layers.0.self_attn.q_proj.weight", (16, 16), True),
    ("model.layers.1.self_attn.q_proj.weight", (16, 16), True),
    ("model.layers.0.mlp.down_proj.weight", (16, 40), True),
    ("model.embed_tokens.weight", (64, 16), False),
]


def table(run_row: dict) -> pd.DataFrame:
    """Gradients of independent numbers, and of the first matrix one with equal columns.

    Args:
        run_row: the run's row of runs.parquet, as `fixture_tables.run_row` makes it.
    """
    draw = torch.Generator().manual_seed(0)
    rows = []
    for step in STEPS:
        for name, shape, treated in WEIGHTS:
            matrix = torch.randn(shape, generator=draw)
            if name == WEIGHTS[0][0]:
                matrix = matrix[:, :1].expand(shape)
            for tensor in ("gradient", "momentum"):
                labels = {"step": step, "tensor": tensor, "treated": treated}
                rows += gradients.measured(matrix, labels | gradients.names_of(name))
    made = pd.DataFrame(rows, columns=list(gradients.COLUMNS)).astype(gradients.COLUMNS)
    facts = {key: run_row.get(key, "made-up") for key in gradients.LABELS}
    own = {"seed": run_row["seeds_weights"], "final_validation_loss": 3.6}
    return made.assign(**(facts | own))[[*gradients.LABELS, *gradients.COLUMNS]]
