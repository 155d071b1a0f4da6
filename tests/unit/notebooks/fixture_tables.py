"""Made-up result tables in the real schema: for tests only, never bundled into paper_figures.

Losses are a formula, not a training; the data set is called ``made_up`` so that nobody can take a
picture of it for a result.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.memory import COLUMNS as MEMORY_COLUMNS
from experiments.memory_steps import COLUMNS as STEPS_COLUMNS
from experiments.results import METRICS as METRICS_COLUMNS

from . import fixture_adama, fixture_gradients, fixture_vision

METHODS = {  # name -> (arguments, end of the loss curve in nats, bytes of state)
    "adamw": ({}, 3.60, 3_700_000),
    "gwt": ({"level": 2}, 3.66, 1_650_000),
    "coap": ({"rank": 16}, 3.69, 1_900_000),
    "galore": ({"rank": 16}, 3.78, 1_900_000),
    "adama": ({}, 3.6005, 3_700_000),
    "lomo": ({}, 6.10, 0),
    "adalomo": ({}, 3.83, 41_000),
}
STEPS, EVERY, TOKENS_PER_STEP = 300, 25, 2048
UNIGRAM = 6.4
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def run_row(run_id: str, task: str, model: str, method: str, seed: int) -> dict:
    args, _, state = METHODS[method]
    return {
        "run_id": run_id,
        "study": "main",
        "suite": "made-up",
        "smoke": True,
        "tuning": False,
        "task": task,
        "model": model,
        "method": method,
        "method_args": json.dumps(args),
        "lr": 0.001,
        "seeds_weights": seed,
        "seeds_data": seed,
        "parameters": 460_000,
        "steps": STEPS,
        "micro_batches": 1,
        "tokens": STEPS * TOKENS_PER_STEP,
        "epochs": 0.2,
        "state_bytes_measured": state,
        "state_bytes_predicted": state,
        "weights_bytes": 1_840_000,
        "peak_rss_bytes": 700_000_000,
        "peak_method": "ru_maxrss",
        "tokens_per_second": 15_000.0 - 300.0 * list(METHODS).index(method),
        "seconds": 41.5,
        "diverged": False,
        "verdict": "ok",
        "optimizer_class": method,
        "optimizer_treated_parameters": 28,
        "optimizer_treated_elements": 196_608,
        "threads": 1,
        "data_id": "made_up-bpe2048-00000000",
        "commit": COMMIT,
        "dirty": False,
        "spec": json.dumps({"model": {"name": model}, "train": {"dtype": "float32"}}),
        "config_hash": f"{run_id}-hash",
        "data_fingerprint": "feedfacefeedfacefeedfacefeedface",
    }


def tables(seeds: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and metrics of pretraining with seven methods, of fine-tuning and instruction tuning."""
    runs, metrics = [], []
    for method, (_, end, _) in METHODS.items():
        for seed in range(seeds):
            run = run_row(f"main-nano-{method}-s{seed}", "pretrain", "nano", method, seed)
            noise = 0.02 * np.sin(1 + seed)
            for step in range(EVERY, STEPS + 1, EVERY):
                loss = end + noise + (7.6 - end) * np.exp(-step / 45)
                metrics.append(
                    {
                        "run_id": run["run_id"],
                        "study": "main",
                        "model": "nano",
                        "method": method,
                        "seed": seed,
                        "step": step,
                        "tokens": step * TOKENS_PER_STEP,
                        "split": "validation",
                        "loss": loss,
                        "lr": 0.001,
                        "grad_norm": np.nan,
                        "seconds": 0.1 * step,
                    }
                )
            runs.append(
                run
                | {
                    "final_validation_loss": loss,
                    "final_perplexity": np.exp(loss),
                    "final_papers_biased_loss": loss * 0.99,
                    "final_unigram_perplexity": np.exp(UNIGRAM),
                }
            )
    for made in (_finetuned(seeds), _instructed(seeds)):
        runs += made[0]
        metrics += made[1]
    return pd.DataFrame(runs), pd.DataFrame(metrics, columns=list(METRICS_COLUMNS))


def _finetuned(seeds: int) -> tuple[list[dict], list[dict]]:
    """A task of GLUE with its F1, and one of the project's own with its accuracy."""
    runs, metrics = [], []
    for study, data, metric in (("mrpc", "glue_mrpc", "f1"), ("own", "made_up", "accuracy")):
        for method, end in {"adamw": 0.81, "gwt": 0.79, "adalomo": 0.74}.items():
            for seed in range(seeds):
                run = run_row(f"{study}-bert-{method}-s{seed}", "finetune", "bert", method, seed)
                run |= {"study": study, "data_id": f"{data}-rows-00000000"}
                run |= {"parameters": 22_700_000, "weights_bytes": 90_000_000}
                states = 30 * METHODS[method][2]
                run |= {"state_bytes_measured": states, "state_bytes_predicted": states}
                for step in range(EVERY, STEPS + 1, EVERY):
                    score = end - 0.01 * np.sin(seed) - 0.3 * np.exp(-step / 60)
                    found = {"accuracy": score - 0.02, "f1": score - 0.02, metric: score}
                    metrics.append(_held_out(run, step, 1 - score) | found)
                found |= {"majority_accuracy": 0.25, "score": score}
                runs.append(
                    run
                    | {f"final_{name}": value for name, value in found.items()}
                    | {"score_metric": metric, "final_validation_loss": 1 - score}
                )
    return runs, metrics


def _instructed(seeds: int) -> tuple[list[dict], list[dict]]:
    """Instruction tuning of three methods."""
    runs, metrics = [], []
    for method, end in {"adamw": 2.2, "lomo": 2.9, "adalomo": 2.4}.items():
        for seed in range(seeds):
            run = run_row(f"talk-nano-{method}-s{seed}", "instruct", "nano", method, seed)
            run |= {"study": "talk", "data_id": "made_up-rows-11111111"}
            for step in range(EVERY, STEPS + 1, EVERY):
                loss = end + 0.02 * np.sin(seed) + 2 * np.exp(-step / 60)
                metrics.append(_held_out(run, step, loss))
            found = {"validation_loss": loss, "perplexity": np.exp(loss), "score": np.exp(loss)}
            found |= {"untuned_perplexity": np.exp(5.0), "mmlu_choice_accuracy": 0.26}
            found = {f"final_{name}": value for name, value in found.items()}
            runs.append(run | found | {"score_metric": "perplexity"})
    return runs, metrics


def _held_out(run: dict, step: int, loss: float) -> dict:
    labels = {key: run[key] for key in ("run_id", "study", "model", "method")}
    numbers = {"step": step, "tokens": step * TOKENS_PER_STEP, "loss": loss, "lr": 0.001}
    return labels | {"seed": run["seeds_weights"], "split": "validation"} | numbers


def sweep() -> pd.DataFrame:
    """Runs of a study that tunes: the best rate is 0.003, the highest diverges."""
    return pd.DataFrame(
        run_row(f"rates-nano-{method}-{lr}", "pretrain", "nano", method, 0)
        | {"study": "rates", "tuning": True, "lr": lr, "diverged": lr > 0.01}
        | {"final_validation_loss": np.nan if lr > 0.01 else end + abs(np.log(lr / 0.003))}
        | {"final_unigram_perplexity": np.exp(UNIGRAM), "data_id": "made_up-tuning"}
        for method, (_, end, _) in METHODS.items()
        for lr in (0.001, 0.003, 0.01, 0.03)
    )


def ablation() -> pd.DataFrame:
    """Runs that vary GWT's level beside the ones of :func:`tables`: each level adds 0.03 nats."""
    own = METHODS["gwt"][1] + 0.02 * np.sin(1)
    return pd.DataFrame(
        run_row(f"ablation_gwt_level-nano-gwt-{level}", "pretrain", "nano", "gwt", 0)
        | {"study": "ablation_gwt_level", "method_args": json.dumps({"level": level})}
        | {"final_validation_loss": loss, "final_perplexity": np.exp(loss)}
        for level in (0, 1, 3)
        for loss in [own + 0.03 * (level - 2)]
    )


def memory() -> pd.DataFrame:
    """Bytes of two models, and printed figures: equal, different, and not computed."""
    rows = []
    for model, weights in {"llama_60m": 100 * 2**20, "llama_7b": 10 * 2**30}.items():
        for method, (args, _, state) in METHODS.items():
            share = state / 3_700_000
            parts = {"weights": weights, "gradients": weights, "states": 2 * share * weights}
            for part, value in (parts | {"projections": 0}).items():
                rows.append(
                    {"table": "papers", "standing": "formula", "model": model, "method": method}
                    | {"arguments": json.dumps(args), "dtype": "bfloat16", "storage": "bfloat16"}
                    | {"part": part, "bytes": int(value)}
                )
    common = {"dtype": "bfloat16", "storage": "bfloat16", "standing": "printed"}
    common |= {"convention": "made-up", "arguments": "{}", "where": "table 1"}
    small, large = 300 * 2**20, 10 * 2**30
    rows += [
        common
        | {"table": "a", "source": "GaLore", "model": "llama_60m", "method": "adamw"}
        | {"part": "weights+states+projections", "bytes": small, "unit": "MiB", "printed": 330.0}
        | {"ours": 300.0, "difference_percent": 100 * (300 / 330 - 1)}
        | {"agreement": "differs", "reason": "one 10 % too high | made up"},
        common
        | {"table": "b", "source": "LOMO", "model": "llama_7b", "method": "lomo"}
        | {"part": "weights", "bytes": large, "unit": "GiB", "printed": 10.0, "ours": 10.0}
        | {"difference_percent": 0.0, "agreement": "printed digits", "reason": ""},
        common
        | {"table": "b", "source": "LOMO", "model": "llama_7b", "method": "lomo"}
        | {"part": "states", "bytes": 0, "unit": "GiB", "printed": 0.0, "ours": 0.0}
        | {"agreement": "printed digits", "reason": ""},
        common
        | {"table": "c", "source": "COAP", "model": "SiT-XL/2", "method": "coap ratio 2"}
        | {"part": "states+projections", "unit": "GiB", "printed": 2.6}
        | {"agreement": "not computed", "reason": "no such shape"},
    ]
    return pd.DataFrame(rows, columns=list(MEMORY_COLUMNS)).astype(MEMORY_COLUMNS)


def steps() -> pd.DataFrame:
    """Whole steps of two methods: parts that differ by checkpointing, printed and not."""
    rows = []
    whole = {"arguments": "{}", "model": "llama_7b", "batch": 8, "seq": 512, "micro_batches": 1}
    for study, source in (("lomo_table1", "LOMO"), ("coap_figure2", "COAP")):
        for method, checkpointing in (("adamw", False), ("adamw", True), ("lomo", True)):
            parts = {"weights": 10, "gradients": 10, "states": 20, "activations": 5, "peak": 40}
            for part, value in parts.items():
                own = {"study": study, "source": source, "method": method, "part": part}
                own |= {"checkpointing": checkpointing, "in_backward": False, "processes": 1}
                printed = {"printed": 41.0, "agreement": "differs", "reason": "made up"}
                extra = printed if part == "peak" and checkpointing else {}
                rows.append(whole | own | {"dtype": "bfloat16", "value": value * 2**30} | extra)
    other = whole | {"checkpointing": False, "in_backward": False, "dtype": "float32"}
    for method, size in (("adamw", 16), ("adama", 12)):
        for count in (1, 2, 4):
            own = {"study": "micro_batches", "method": method, "micro_batches": count}
            own |= {"batch": 8 // count, "part": "peak", "value": (size + 8 // count) * 2**30}
            rows.append(other | own)
        for processes in (1, 8):
            own = {"study": "largest_model", "method": method, "processes": processes}
            for part, value in (("parameters", 10**11 // size), ("layers", 9), ("peak", 10**10)):
                rows.append(other | own | {"memory": 16 * 10**9, "part": part, "value": value})
    return pd.DataFrame(rows, columns=list(STEPS_COLUMNS)).astype(STEPS_COLUMNS)


def timeline() -> pd.DataFrame:
    """A made-up step of two methods."""
    kinds = {"weights": 10, "states": 20, "gradients": 3, "temporaries": 1, "other": 0}
    phases = ["forward"] * 20 + ["backward"] * 20 + ["step"] * 10
    return pd.DataFrame(
        {"model": "llama_7b", "method": method, "dtype": "bfloat16", "operation": at}
        | {"phase": phase, "activations": min(at, 40 - min(at, 40)) * 2**30}
        | {kind: size * 2**30 for kind, size in kinds.items()}
        for method in ("adamw", "lomo")
        for at, phase in enumerate(phases)
    )


def write(folder: Path, seeds: int = 1) -> None:
    """Write the tables, as the workflow does."""
    folder.mkdir(parents=True, exist_ok=True)
    runs, metrics = tables(seeds)
    said = json.dumps({"instruction": "Name a colour.", "answer": "Made | up."}) + "\n"
    runs["generations"] = [said if task == "instruct" else None for task in runs.task]
    images, updates = map(pd.DataFrame, fixture_vision.tables(run_row))
    more, evaluations = fixture_adama.tables(run_row, metrics)
    beside = more.iloc[-1].to_dict()
    fixture_adama.measured(beside).to_parquet(folder / "micro_batches.parquet", index=False)
    runs = pd.concat([runs, sweep(), ablation(), images, more], ignore_index=True)
    metrics = pd.concat([metrics, updates, evaluations], ignore_index=True)
    runs.to_parquet(folder / "runs.parquet", index=False)
    metrics.to_parquet(folder / "metrics.parquet", index=False)
    memory().to_parquet(folder / "memory.parquet", index=False)
    steps().to_parquet(folder / "steps.parquet", index=False)
    timeline().to_parquet(folder / "timeline.parquet", index=False)
    measured = runs[(runs.task == "pretrain") & (runs.method == "adamw")].iloc[0]
    gradients = fixture_gradients.table(dict(measured))
    gradients.to_parquet(folder / "gradients.parquet", index=False)
