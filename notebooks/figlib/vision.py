"""Small images: bytes against quality, gradient norms under schedules, two tasks."""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from . import compare, lines, stats, style

MARGIN = 0.05  # share of the reference's loss that docs/study.md calls equal here
LAST_EPOCHS = 10
MODELS = {"digits_conv": "classifier", "digits_unet": "diffusion"}
SCHEDULES = {  # name in studies to legend, colour, dash
    "exact": ("exact constant", "#DB3F2F", style.SOLID),
    "constant": ("constant 0.01", "#2A2F36", style.SOLID),
    "cosine": ("cosine", "#2460C8", style.DASHED),
    "linear": ("linear", "#2A9D70", style.DASHDOT),
    "step": ("step", "#A33592", style.DOTTED),
    "exponential": ("exponential", "#F2A834", style.DASHED),
    "inverse_time": ("inverse time", "#6C6246", style.DASHDOT),
    "inverse_sqrt": ("inverse square root", "#00A2A6", style.SOLID),
}

WAYS = {
    "sum": "weighted sum",
    "gcond": "GCond",
    "sum_every": "weighted sum, every micro-batch for both",
    "gcond_every": "GCond, every micro-batch for both",
}


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of convolutional models with ``label`` and ``reference``, the label they are read by.

    A projected method is read by the full-rank one with its rule, 8-bit states by the same method
    in float32.
    """
    out = runs[runs.model.isin(MODELS)].copy()
    labels, references = [], []
    for run in out.itertuples():
        args = json.loads(run.method_args)
        own = args.get("rule") if run.method in ("coap", "galore") else None
        eight = args.get("storage") == "8bit"
        base = style.look(run.method).label + (", Adafactor" if own == "adafactor" else "")
        labels.append(base + (", 8-bit" if eight else ""))
        full = style.look("adafactor" if own == "adafactor" else "adamw").label
        references.append(base if eight else full)
    return out.assign(label=labels, reference=references)


def conv_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a model and label, best loss first: quality, bytes, difference to the reference.

    ``relative`` is the loss minus that of ``reference`` with the same seed, as a share of the
    latter's mean, with a 95 % Student interval (``low``, ``high``); ``reading`` follows
    docs/study.md.

    Args:
        runs: what :func:`named` returns, tuning left out.
    """
    seeds = ["model", *compare.SEEDS]
    rows = []
    for (model, label), group in runs.groupby(["model", "label"], sort=False):
        reference = group.reference.iloc[0]
        base = runs[(runs.model == model) & (runs.label == reference)]
        paired = group.join(base.set_index(seeds).final_validation_loss.rename("base"), on=seeds)
        share = (paired.final_validation_loss - paired.base) / base.final_validation_loss.mean()
        relative, low, high = stats.interval(share)
        loss, loss_low, loss_high = stats.interval(group.final_validation_loss)
        is_reference = label == reference
        rows.append(
            {"model": model, "method": group.method.iloc[0], "label": label}
            | {"lr": group.lr.iloc[0], "loss": loss, "loss_low": loss_low, "loss_high": loss_high}
            | {"accuracy": group.final_accuracy.mean(skipna=False)}
            | {"reference": None if is_reference else reference}
            | {"relative": np.nan if is_reference else relative}
            | {"low": np.nan if is_reference else low, "high": np.nan if is_reference else high}
            | {"reading": None if is_reference else reading(relative, low, high)}
            | {"state_bytes": group.state_bytes_measured.max()}
            | {"bytes_per_weight": group.state_bytes_measured.max() / group.parameters.max()}
            | {"seeds": len(group), "diverged": int(group.diverged.sum())}
        )
    return pd.DataFrame(rows).sort_values(["model", "loss"], kind="stable", ignore_index=True)


def reading(relative: float, low: float, high: float) -> str:
    """What an interval says, with a margin of `MARGIN`."""
    if np.isnan(relative):
        return "diverged"
    if low >= -MARGIN and high <= MARGIN:
        return "equal"
    if high < 0:
        return "better"
    return "worse" if low > 0 else "cannot say"


def conv_figure(table: pd.DataFrame) -> Figure:
    """Held-out loss against bytes of optimizer state, one panel a model."""
    panels = list(table.groupby("model", sort=False))
    fig, axes = plt.subplots(len(panels), 1, figsize=(7.0, 3.1 * len(panels)), squeeze=False)
    for axis, (model, rows) in zip(axes[:, 0], panels, strict=True):
        shown = rows.dropna(subset=["loss"])
        inside = shown[shown.loss <= lines.OFF_SCALE * shown.loss.median()]
        axis.errorbar(
            inside.bytes_per_weight, inside.loss, fmt="none", ecolor=style.MUTED, elinewidth=0.9,
            yerr=[inside.loss - inside.loss_low, inside.loss_high - inside.loss],
        )  # fmt: skip
        margin = 0.1 * (inside.loss_high.max() - inside.loss_low.min())
        axis.set_ylim(inside.loss_low.min() - margin, inside.loss_high.max() + margin)
        axis.set_xlim(0, shown.bytes_per_weight.max() * 1.06)
        axis.set_title(f"{model} ({MODELS[model]})")
        axis.set_ylabel("Held-out loss" if MODELS[model] == "classifier" else "Noise error, MSE")
    axes[-1, 0].set_xlabel("Bytes of optimizer state per weight of the model")
    fig.draw_without_rendering()
    for axis, (_, rows) in zip(axes[:, 0], panels, strict=True):
        compare.named_points(axis, rows.dropna(subset=["loss"]).sort_values("loss"), "loss")
    return fig


def beside_printed(table: pd.DataFrame, printed: list[dict[str, Any]]) -> pd.DataFrame:
    """COAP's DDPM table beside our diffusion network: bytes as shares of AdamW's, and quality.

    Args:
        table: what :func:`conv_table` returns.
        printed: rows of ``experiments/printed/diffusion.yaml``.
    """
    rows = []
    for row in printed:
        own = ", Adafactor" if row["rule"] == "adafactor" and row["method"] != "adafactor" else ""
        base = next(r for r in printed if r["data"] == row["data"] and r["method"] == "adamw")
        rows.append(
            {"source": f"printed: {row['data']}", "label": style.look(row["method"]).label + own}
            | {"ratio": row["ratio"], "bytes_share": row["megabytes"] / base["megabytes"]}
            | {"fid": row["fid"], "loss": np.nan}
        )
    ours = table[table.model == "digits_unet"]
    whole = ours[ours.label == style.look("adamw").label].state_bytes.max()
    for line in ours.itertuples():
        ratio = 2.0 if line.method in ("coap", "galore") else np.nan
        rows.append(
            {"source": "ours: digits_unet", "label": line.label, "ratio": ratio}
            | {"bytes_share": line.state_bytes / whole, "fid": np.nan, "loss": line.loss}
        )
    return pd.DataFrame(rows)


def norms(runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Gradient norm of each epoch: mean over its updates, then geometric mean over seeds.

    Args:
        runs: of the studies ``full_*`` and ``mini_*``.
        metrics: with one training row an update.

    Returns:
        One row a study, factor and epoch: ``norm``, ``lowest`` and ``highest`` over seeds,
        ``seeds`` that are still training.
    """
    train = metrics[(metrics.split == "train") & metrics.run_id.isin(runs.run_id)]
    train = train[["run_id", "step", "tokens", "grad_norm"]].merge(
        runs[["run_id", "study", "model", "lr", "tokens", "epochs"]],
        on="run_id",
        suffixes=("", "_all"),
    )
    train["epoch"] = np.ceil(train.tokens * train.epochs / train.tokens_all - 1e-9).astype(int)
    each = train.groupby(["study", "model", "lr", "run_id", "epoch"]).grad_norm.mean().reset_index()
    each = each[np.isfinite(each.grad_norm) & (each.grad_norm > 0)]
    each["log"] = np.log(each.grad_norm)
    table = each.groupby(["study", "model", "lr", "epoch"]).agg(
        norm=("log", "mean"), lowest=("grad_norm", "min"), highest=("grad_norm", "max"),
        seeds=("run_id", "size"),
    )  # fmt: skip
    table["norm"] = np.exp(table.norm)
    return table.reset_index()


def schedule_of(study: str, lr: float) -> tuple[str, str]:
    """Batch (``full`` or ``mini``) and the schedule's label, with the factor of an exact rate."""
    batch, _, name = study.partition("_")
    name, deep = name.removeprefix("deep_"), name.startswith("deep_")
    factor = f" × {lr:g}" if name == "exact" and lr != 1 else ""
    return batch, SCHEDULES[name][0] + factor + (", five layers" if deep else "")


def schedule_table(runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """One row a schedule: the norm over the last epochs, held-out loss and accuracy.

    ``norm`` is the geometric mean over seeds of the mean over the last `LAST_EPOCHS` epochs, of
    the seeds that came to the end.
    """
    by_epoch = norms_of_runs(runs, metrics)
    rows = []
    for (study, lr), group in runs.groupby(["study", "lr"], sort=False):
        batch, label = schedule_of(study, lr)
        ended = group[~group.diverged.astype(bool)]
        last = by_epoch.reindex(ended.run_id).dropna()
        measured = group.get("final_exact_step_size", pd.Series(dtype=float)).dropna()
        rows.append(
            {"study": study, "batch": batch, "schedule": label, "model": group.model.iloc[0]}
            | {
                "rate": lr * measured.mean()
                if len(measured)
                else (np.nan if "exact" in study else lr)
            }
            | {"norm": np.exp(np.log(last).mean()) if len(last) else np.nan}
            | {"norm_low": last.min() if len(last) else np.nan}
            | {"norm_high": last.max() if len(last) else np.nan}
            | {"loss": ended.final_validation_loss.mean() if len(ended) else np.nan}
            | {"accuracy": ended.final_accuracy.mean() if len(ended) else np.nan}
            | {"seeds": len(group), "diverged": int(group.diverged.sum())}
        )
    table = pd.DataFrame(rows)
    return table.sort_values(["batch", "norm"], kind="stable", ignore_index=True)


def norms_of_runs(runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.Series:
    """Mean gradient norm over the last `LAST_EPOCHS` epochs of each run, by run_id."""
    train = metrics[(metrics.split == "train") & metrics.run_id.isin(runs.run_id)]
    epochs = runs.set_index("run_id").epochs
    share = 1 - LAST_EPOCHS / train.run_id.map(epochs)
    final = train.groupby("run_id").step.transform("max")
    return train[train.step > share * final + 1e-6].groupby("run_id").grad_norm.mean()


def schedule_figure(table: pd.DataFrame) -> Figure:
    """Gradient norm over epochs, one panel a batch size; a cross where a run blew up.

    Args:
        table: what :func:`norms` returns.
    """
    batches = {"full": "whole training set as one batch", "mini": "mini-batches of 155"}
    fig, axes = plt.subplots(1, 2, figsize=(8.6, 3.9), squeeze=False)
    for axis, (batch, title) in zip(axes[0], batches.items(), strict=True):
        mine = table[table.study.str.startswith(f"{batch}_")]
        for (study, _, lr), rows in mine.groupby(["study", "model", "lr"], sort=False):
            _norm_line(axis, study, lr, rows)
        axis.set_yscale("log")
        axis.set_title(title)
        axis.set_xlabel("Epoch")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        finite = mine[mine.epoch >= 3].norm
        axis.set_ylim(finite.min() / 2, min(finite.max() * 5, 1e2))
    axes[0, 0].set_ylabel("Norm of the training gradient")
    handles = {
        label: h for a in axes[0] for h, label in zip(*a.get_legend_handles_labels(), strict=True)
    }
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    return fig


def _norm_line(axis: Axes, study: str, lr: float, rows: pd.DataFrame) -> None:
    _, label = schedule_of(study, lr)
    name = study.split("_", 1)[1].removeprefix("deep_")
    _, color, dash = SCHEDULES[name]
    look: dict[str, Any] = {"color": color, "ls": dash, "lw": 1.4}
    if name == "exact":
        look["ls"] = {0.5: style.DASHED, 1.0: style.SOLID, 2.0: style.DOTTED}[lr]
        look["alpha"] = 0.5 if "deep" in study else 1.0
    axis.plot(rows.epoch, rows.norm, label=label, **look)
    axis.fill_between(rows.epoch, rows.lowest, rows.highest, color=color, alpha=0.1, lw=0)
    if rows.epoch.max() < 5:  # given up
        axis.plot(rows.epoch.max(), 0.97, "x", color=color, transform=axis.get_xaxis_transform())


def two_tasks(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a way and weight of the image's loss: both qualities and the share of conflicts."""
    parts = runs.study.str.extract(r"^two_(?P<how>.+)_w(?P<weight>\d+)$")
    runs = runs.assign(how=parts.how, weight=parts.weight.astype(int))
    rows = []
    for (weight, how), group in runs.groupby(["weight", "how"]):
        error, error_low, error_high = stats.interval(group.final_image_error)
        right, right_low, right_high = stats.interval(group.final_accuracy)
        rows.append(
            {"weight": weight, "how": WAYS[how]}
            | {"image_error": error, "image_error_low": error_low, "image_error_high": error_high}
            | {"accuracy": right, "accuracy_low": right_low, "accuracy_high": right_high}
            | {"conflict_share": group.final_conflict_share.mean()}
            | {"seeds": len(group), "diverged": int(group.diverged.sum())}
        )
    return pd.DataFrame(rows)


def two_tasks_figure(table: pd.DataFrame) -> Figure:
    """Error of the rebuilt image against accuracy; a line joins the weights of one way."""
    looks = {
        "weighted sum": ("#2A2F36", "o", style.SOLID),
        "GCond": ("#DB3F2F", "^", style.DASHED),
        "weighted sum, every micro-batch for both": ("#9AA1AB", "s", style.SOLID),
        "GCond, every micro-batch for both": ("#F2A834", "D", style.SOLID),
    }
    fig, axis = plt.subplots(figsize=(6.6, 3.6))
    for how, (color, marker, dash) in looks.items():
        rows = table[table.how == how].sort_values("weight")
        axis.errorbar(
            rows.image_error, rows.accuracy, color=color, marker=marker, ls=dash, label=how,
            yerr=[rows.accuracy - rows.accuracy_low, rows.accuracy_high - rows.accuracy],
            xerr=[
                rows.image_error - rows.image_error_low, rows.image_error_high - rows.image_error
            ],
            elinewidth=0.8, lw=1.2, ms=5.5,
        )  # fmt: skip
        for row in rows.itertuples():
            axis.annotate(
                f"{row.weight}", (row.image_error, row.accuracy), xytext=(5, -11),
                textcoords="offset points", fontsize=7.5, color=style.readable(color),
            )  # fmt: skip
    axis.set_xlabel("Mean squared error of the rebuilt pixels (left is better)")
    axis.set_ylabel("Share of right digits (up is better)")
    axis.legend(loc="best")
    return fig
