"""Rows of the tables, from the rows of runs.parquet."""

from __future__ import annotations

import numpy as np
import pandas as pd

from . import stats
from .bundle import Columns

KEYS = ["study", "model", "method", "label"]


def over_seeds(runs: pd.DataFrame, value: str, how: str) -> pd.DataFrame:
    """Mean (or median) and 95 % interval of ``value`` per line; ``how='exp'`` is for losses."""
    rows = []
    for key, group in runs.groupby(KEYS, sort=False):
        mean, low, high = stats.over_seeds(group, group[value])
        numbers = np.exp([mean, low, high]) if how == "exp" else np.array([mean, low, high])
        rows.append((*key, *numbers))
    return pd.DataFrame(rows, columns=[*KEYS, "value", "low", "high"])


def pretraining(runs: pd.DataFrame) -> pd.DataFrame:
    """Quality and memory of each method, best perplexity first within a model."""
    facts = facts_of(runs, ["final_unigram_perplexity", "final_papers_biased_loss"])
    table = over_seeds(runs, "final_validation_loss", "exp").rename(columns={"value": "perplexity"})
    table = table.merge(facts, on=KEYS, validate="one_to_one")
    table["papers_biased_perplexity"] = np.exp(table.pop("final_papers_biased_loss"))
    table = table.rename(columns={"final_unigram_perplexity": "unigram_perplexity"})
    return table.sort_values(["study", "model", "perplexity"], kind="stable", ignore_index=True)


def step_time(runs: pd.DataFrame, reference: str = "adamw") -> pd.DataFrame:
    """Time per training token of each method, as a ratio to the reference in the same study.

    A study and model without the reference has no ratio (NaN).
    """
    facts = runs.groupby(KEYS, sort=False).agg(
        tokens_per_second=("tokens_per_second", "median"),
        threads=("threads", "first"),
        seeds=("run_id", "size"),
    )
    table = facts.reset_index()
    base = table[table.method == reference].groupby(["study", "model"]).tokens_per_second.max()
    table = table.join(base.rename("reference"), on=["study", "model"])
    table["time_ratio"] = table.pop("reference") / table.tokens_per_second
    return stats.in_order(table)


def state_bytes(runs: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted bytes of state, one row a model and label (seeds hold the same)."""
    table = runs.groupby(["model", "method", "label"], sort=False).agg(
        parameters=("parameters", "first"),
        measured=("state_bytes_measured", "max"),
        predicted=("state_bytes_predicted", "max"),
        runs=("run_id", "size"),
    )
    return stats.in_order(table.reset_index()).sort_values("parameters", kind="stable")


def facts_of(runs: pd.DataFrame, averaged: list[str]) -> pd.DataFrame:
    """What stands beside the main number: averages over seeds, and what seeds share."""
    return (
        runs.groupby(KEYS, sort=False)
        .agg(
            **{name: (name, "mean") for name in averaged},
            lr=("lr", "first"),
            data_id=("data_id", "first"),
            parameters=("parameters", "first"),
            weights_bytes=("weights_bytes", "first"),
            state_bytes_measured=("state_bytes_measured", "max"),
            state_bytes_predicted=("state_bytes_predicted", "max"),
            steps=("steps", "first"),
            epochs=("epochs", "max"),
            seeds=("run_id", "size"),
            diverged=("diverged", "sum"),
        )
        .reset_index()
    )


def worth_showing(table: pd.DataFrame, columns: Columns) -> Columns:
    """``columns`` without those that say nothing: one study, no value, nothing diverged."""
    silent = {c for c in columns if c in table and table[c].isna().all()}
    if table.study.nunique() == 1:
        silent.add("study")
    if "diverged" in table and not table.diverged.any():
        silent.add("diverged")
    return {c: shown for c, shown in columns.items() if c not in silent}
