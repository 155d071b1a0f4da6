"""Made-up runs of AdamA over micro-batches, and of the steps beside AdamW's: for tests only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from experiments.step_ratio import step_ratio

APART = {2: 0.004, 4: 0.02}  # N -> distance to AdamW at the end, nats
SNR = {"embedding": 0.1, "mlp": 1.0, "all": 0.5}


def tables(
    run_row: Callable[..., dict], metrics: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and metrics: AdamA with two and four micro-batches, AdamW with two.

    Args:
        run_row: makes a row of runs.
        metrics: with AdamW's in one micro-batch, seed 0, from which the others are apart.
    """
    runs, more = [], []
    course = metrics[metrics.run_id == "main-nano-adamw-s0"]
    for method, count, apart in [*(("adama", n, d) for n, d in APART.items()), ("adamw", 2, 1e-5)]:
        run = run_row(f"ablation_adama_{count}-nano-{method}-s0", "pretrain", "nano", method, 0)
        loss = course.loss.iloc[-1] + apart
        runs.append(
            run
            | {"study": f"ablation_adama_{count}", "micro_batches": count}
            | {"final_validation_loss": loss, "final_perplexity": np.exp(loss)}
            # AdamA with two micro-batches has AdamW's weights (in truth with one)
            | {"weights_sha256": f"sum of {count}"}
        )
        own = {"run_id": run["run_id"], "method": method, "study": f"ablation_adama_{count}"}
        more.append(course.assign(**own, loss=course.loss + apart))
    return pd.DataFrame(runs), pd.concat(more)


def measured(run: dict, error: float = 0.0) -> pd.DataFrame:
    """Steps of AdamA along a run of AdamW: by formula, times ``1 + error``."""
    rows: list[dict[str, Any]] = []
    for step in (2, 100, 300):
        for over in ("moments", "window"):
            for kind, snr in SNR.items():
                for name in [None] if kind == "all" else [None, f"{kind}.weight"]:
                    for count in (1, 2, 4):
                        ratio = float(step_ratio(snr, count))
                        row = {"run_id": run["run_id"], "step": step, "over": over, "name": name}
                        row |= {"kind": kind, "micro_batches": count, "snr": snr, "snr_odd": snr}
                        row |= {"ratio_even": ratio * (1 + error), "predicted": ratio}
                        rows.append(row | {f"q{q:02}": ratio for q in (5, 25, 50, 75, 95)})
    facts = ("smoke", "steps", "commit", "dirty", "config_hash", "data_fingerprint")
    return pd.DataFrame(rows).assign(batch_size=4, **{key: run[key] for key in facts})
