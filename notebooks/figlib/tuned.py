"""Tables of fine-tuning and instruction tuning: scores over seeds, beside printed ones."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from experiments.printed_scores import PrintedFile, cells

from . import compare, rows, stats, style
from .bundle import Columns

METRICS = {  # column of runs.parquet without `final_` -> heading
    "accuracy": "Accuracy",
    "f1": "F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "perplexity": "Perplexity",
    "validation_mismatched_accuracy": "Accuracy, mismatched",
    "mmlu_choice_accuracy": "MMLU, accuracy",
    "gsm8k_exact_match": "GSM8K, exact match",
}
REFERENCES = ("majority_accuracy", "untuned_perplexity")  # what needs no training


def data_name(data_id: str) -> str:
    """The source's name in ``glue_mrpc-rows-0218bebd``, without ``glue_``.

    A stand-in keeps its own name, which is never that of a task of GLUE.
    """
    return data_id.rsplit("-", 2)[0].removeprefix("glue_")


def with_scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs made before tables had scores (some are in git) are ranked by their accuracy."""
    old = runs.score_metric.isna() if "score_metric" in runs else pd.Series(True, runs.index)
    metric = runs.get("score_metric", old).where(~old, "accuracy")
    score = runs.get("final_score", runs.final_accuracy).where(~old, runs.final_accuracy)
    return runs.assign(score_metric=metric, final_score=score.astype(float))


def scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Score and other metrics of each method, best score first within a task.

    Returns:
        Columns of `rows.KEYS`, ``task``, ``score_metric``, ``score`` with ``low`` and ``high``,
        what the runs have of ``METRICS`` and ``REFERENCES``, bytes and ``seeds``.
    """
    there = [f"final_{name}" for name in [*METRICS, *REFERENCES] if f"final_{name}" in runs]
    facts = rows.facts_of(runs, there)
    by_loss = runs.score_metric == "perplexity"
    parts = [
        rows.over_seeds(runs[by_loss], "final_validation_loss", "exp"),
        rows.over_seeds(runs[~by_loss], "final_score", "as is"),
    ]
    table = pd.concat([part for part in parts if len(part)]).rename(columns={"value": "score"})
    table = table.merge(facts, on=rows.KEYS, validate="one_to_one")
    metric = runs.groupby(rows.KEYS, sort=False).score_metric.first().rename("score_metric")
    table = table.join(metric, on=rows.KEYS).rename(columns=lambda c: c.removeprefix("final_"))
    table["task"] = table.data_id.map(data_name)
    rank = table.score.where(table.score_metric == "perplexity", -table.score)
    order = ["task", "study", "model", "_rank"]
    ranked = table.assign(_rank=rank).sort_values(order, kind="stable", ignore_index=True)
    return ranked.drop(columns="_rank")


def with_differences(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """``table`` with the loss of each method minus AdamW's, paired by seed.

    Args:
        table: what :func:`scores` returns.
        runs: the same runs; those of a study and seed without AdamW have no difference.

    Returns:
        Also ``difference``, ``difference_low``, ``difference_high`` and ``reading``, see
        `compare.against`; nothing new where no run has AdamW beside it.
    """
    pairs = runs.set_index(compare.PAIR).index
    paired = runs[pairs.isin(pairs[runs.method == "adamw"])]
    if paired.empty:
        return table
    found = compare.against(paired)[[*rows.KEYS, "difference", "low", "high", "reading"]]
    found = found.rename(columns={"low": "difference_low", "high": "difference_high"})
    return table.merge(found, on=rows.KEYS, how="left", validate="one_to_one")


def score_differences(runs: pd.DataFrame, reference: str = "adamw") -> pd.DataFrame:
    """Score of each method minus the reference's, paired by seed.

    The counterpart has the same model, data, updates and seeds (of head and order), in whatever
    study it stands; lines without one, and the reference's own, are left out.

    Returns:
        `rows.KEYS`, ``difference`` with ``difference_low`` and ``difference_high`` (95 % Student
        interval; NaN for one seed).
    """
    same = ["model", "data_id", "steps", *compare.SEEDS]
    base = runs[runs.method == reference].drop_duplicates(same).set_index(same).final_score
    paired = runs[runs.method != reference].join(base.rename("base"), on=same)
    paired["difference"] = paired.final_score - paired.base
    table = rows.over_seeds(paired.dropna(subset="base"), "difference", "as is")
    names = {"value": "difference", "low": "difference_low", "high": "difference_high"}
    return table.rename(columns=names)


def metric_columns(table: pd.DataFrame, form: str = ".3f") -> Columns:
    """The metrics that a table has, as columns to show."""
    return {name: (heading, form) for name, heading in METRICS.items() if name in table}


def curves(runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """The score of each run's task over training, one row a series and step; as `stats.curves`."""
    held_out = metrics[metrics.split == "validation"]
    about = ["run_id", "label", "data_id", "score_metric"] + ["aggregate"] * ("aggregate" in runs)
    merged = held_out.merge(runs[about], on="run_id", validate="many_to_one")
    stats.require(merged, "held-out metrics of these runs (metrics.parquet)", ["score_metric"])
    made = []
    for key, group in merged.groupby([*stats.SERIES, "step"], sort=True):
        metric = group.score_metric.iloc[0]
        by_loss = metric == "perplexity"
        found = stats.over_seeds(group, group.loss if by_loss else group[metric])
        mean, low, high = np.exp(found) if by_loss else found
        made.append(
            dict(zip([*stats.SERIES, "step"], key, strict=True))
            | {"task": data_name(group.data_id.iloc[0]), "score_metric": metric}
            | {"score": mean, "low": low, "high": high, "seeds": len(group)}
        )
    return stats.in_order(pd.DataFrame(made))


def beside(printed: PrintedFile, runs: pd.DataFrame) -> pd.DataFrame:
    """Printed values by task, and ours of the tasks that were run here, in percent.

    Returns:
        Columns ``task``, ``metric``, ``source`` ("here" for ours), ``model``, ``label``,
        ``setting``, ``memory``, ``value``, ``low``, ``high``, ``seeds``, ``note``.
    """
    made: list[dict[str, object]] = []
    for cell in cells(printed):
        table = printed.tables[cell.table]
        if cell.column is None:
            continue
        about = {"task": cell.task, "metric": METRICS[cell.column.removeprefix("final_")]}
        mine = runs[runs[cell.column].notna()] if cell.column in runs else runs[:0]
        if table.one_run_a_task:
            mine = mine[mine.data_id.map(data_name) == cell.task]
        shown = any(row["source"] == "here" and about.items() <= row.items() for row in made)
        if len(mine) and not shown:
            made += [about | row for row in _ours(mine, cell.column)]
        made.append(
            about
            | {"source": table.source, "model": cell.model, "method": cell.row.method}
            | {"label": style.look(cell.row.method).label, "setting": cell.row.setting}
            | {"memory": cell.row.memory, "value": cell.value, "note": table.note}
        )
    table = pd.DataFrame(made, columns=PRINTED).astype({"seeds": "Int64"})
    return table.sort_values(["task", "metric"], kind="stable", ignore_index=True)


PRINTED = ["task", "metric", "source", "study", "model", "method", "label", "setting", "memory"]
PRINTED += ["value", "low", "high", "seeds", "note"]


def _ours(runs: pd.DataFrame, column: str) -> list[dict[str, object]]:
    """Our values of one task and metric, in percent."""
    table = rows.over_seeds(runs, column, "as is")
    facts = rows.facts_of(runs, [])[[*rows.KEYS, "state_bytes_measured", "seeds"]]
    table = table.merge(facts, on=rows.KEYS, validate="one_to_one")
    for name in ("value", "low", "high"):
        table[name] = 100 * table[name]
    states = (table.pop("state_bytes_measured") / 2**20).map("{:.1f} MiB of states".format)
    table = table.assign(source="here", memory=states)
    return table.to_dict("records")  # type: ignore[return-value]


def answers(runs: pd.DataFrame) -> pd.DataFrame:
    """What the tuned models say: the answers of each method's first seed to the fixed prompts.

    Args:
        runs: rows of runs.parquet; a run whose row has no answers gets one row that says so.
    """
    first = runs.sort_values("seeds_weights", kind="stable").drop_duplicates(rows.KEYS)
    made = []
    for _, run in stats.in_order(first).iterrows():
        said = pd.DataFrame({"instruction": ["(all)"], "answer": ["(not in these tables)"]})
        if isinstance(kept := run.get("generations"), str):
            said = pd.DataFrame(map(json.loads, kept.strip().split("\n")))
        made.append(said.assign(**run[["study", "model", "method", "label", "run_id"]]))
    return pd.concat(made, ignore_index=True)
