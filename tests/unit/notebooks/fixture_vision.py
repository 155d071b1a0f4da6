"""Made-up runs of the suite of images, in the real schema; see `fixture_tables`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

SEEDS = (0, 1)
EPOCHS = 12
RATE = 0.2  # measured by the runs of `exact`
# study, model, method, arguments, loss, bytes a weight
CONV = [
    ("conv", "digits_conv", "adamw", {}, 0.100, 8),
    ("conv", "digits_conv", "adafactor", {}, 0.110, 4),
    ("conv", "digits_conv", "coap", {}, 0.103, 5),
    ("conv", "digits_conv", "coap", {"storage": "8bit"}, 0.104, 2),
    ("conv_adafactor", "digits_conv", "coap", {"rule": "adafactor"}, 0.121, 3),
    ("conv", "digits_conv", "galore", {}, 0.150, 6),
    ("ddpm", "digits_unet", "adamw", {}, 0.200, 8),
    ("ddpm", "digits_unet", "coap", {}, 0.204, 5),
    ("ddpm", "digits_unet", "galore", {}, np.nan, 6),
]
SCHEDULES = [  # study, model, rate or factor, norm at the end, whether it diverges
    ("full_exact", "digits_mlp", 0.5, 0.5, False),
    ("full_exact", "digits_mlp", 1.0, np.nan, True),
    ("full_deep_exact", "digits_mlp_deep", 1.0, np.nan, True),
    ("full_cosine", "digits_mlp", 0.01, 0.001, False),
    ("mini_exact", "digits_mlp", 1.0, 0.2, False),
    ("mini_inverse_sqrt", "digits_mlp", 0.01, 0.1, False),
]
TWO = [("sum", 1), ("sum", 5), ("gcond", 1), ("gcond", 5), ("sum_every", 5), ("gcond_every", 5)]


def tables(row: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of runs.parquet and metrics.parquet.

    Args:
        row: `fixture_tables.run_row`.
    """
    runs: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []

    def run(study: str, model: str, method: str, mark: str, seed: int, **own: Any) -> str:
        run_id = f"{study}-{model}-{method}-{mark}-s{seed}"
        made = row(run_id, "vision", model, "adamw", seed)
        made |= {"study": study, "method": method, "method_args": "{}", "parameters": 1000}
        runs.append(made | {"diverged": False, "epochs": float(EPOCHS)} | own)
        return run_id

    for seed in SEEDS:
        for study, model, method, args, loss, size in CONV:
            own = {"method_args": json.dumps(args), "state_bytes_measured": 1000 * size}
            own |= {"final_validation_loss": loss * (1 + 0.1 * seed), "final_accuracy": 0.9}
            own |= {"diverged": bool(np.isnan(loss))}
            run(study, model, method, "-".join(map(str, args.values())) or "plain", seed, **own)
        for study, model, lr, end, lost in SCHEDULES:
            steps, last = EPOCHS * (3 if study.startswith("mini") else 1), 2 if lost else EPOCHS
            own = {"lr": lr, "diverged": lost, "steps": 2 if lost else steps}
            own |= {"final_exact_step_size": RATE if "exact" in study else np.nan}
            own |= {"tokens": 2 if lost else steps, "epochs": float(last)}
            own |= {"final_validation_loss": np.nan if lost else 0.3}
            run_id = run(study, model, "adamw", f"{lr}", seed, **own)
            for step in range(1, own["steps"] + 1):
                norm = 1e5 if lost and step == 2 else end if step > 2 else 1.0
                labels = {"run_id": run_id, "study": study, "model": model, "method": "adamw"}
                labels |= {"seed": seed, "step": step, "tokens": step, "split": "train"}
                metrics.append(labels | {"loss": 1.0, "grad_norm": norm, "lr": lr, "seconds": 0.1})
        for how, weight in TWO:
            own = {"final_image_error": 0.2 / weight, "final_accuracy": 0.9 - 0.01 * weight}
            own |= {"final_conflict_share": 0.0 if how.startswith("sum") else 0.3}
            run(f"two_{how}_w{weight}", "digits_two_tasks", "adamw", "plain", seed, **own)
    return runs, metrics
