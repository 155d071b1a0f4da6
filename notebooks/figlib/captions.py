"""Sentences that captions share: which model, data, steps, seeds and commit."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd


def of_runs(runs: pd.DataFrame) -> str:
    """What was run, in one paragraph; says when data was repeated or a run diverged."""
    sizes = runs.drop_duplicates("model").sort_values("parameters")
    models = listed(f"{m.model} ({m.parameters / 1e6:.3g} M weights)" for m in sizes.itertuples())
    steps = extent(runs.steps, "{:,.0f}")
    tokens = extent(runs.tokens / 1e6, "{:.3g}")
    seeds = runs.groupby(["study", "model", "label"]).size()
    text = (
        f"Model: {models}. Data: {data_names(runs)}. {steps} steps, {tokens} million tokens, "
        f"{epochs(runs)} of the data; seeds per line: "
        f"{extent(seeds, '{:.0f}')}. {code(runs)}"
    )
    repeated = sorted(set(runs.label[runs.epochs > 1]))
    if repeated:
        text += (
            " **The data was seen more than once** by "
            + ("every method" if len(repeated) == runs.label.nunique() else listed(repeated))
            + ": the order of methods may differ from that of a single pass."
        )
    diverged = sorted(set(runs.label[runs.diverged]))
    if diverged:
        text += (
            f" Diverged with at least one seed: {listed(diverged)}; lines average what is finite."
        )
    return text


def epochs(runs: pd.DataFrame) -> str:
    """``0.39 epochs``, ``1 epoch``."""
    number = extent(runs.epochs, "{:.2g}")
    return f"{number} epoch{'' if number == '1' else 's'}"


def code(runs: pd.DataFrame) -> str:
    """The commits that the runs were made from."""
    commits = sorted({str(c)[:10] for c in runs.commit.fillna("unknown")})
    named = listed(commits) if len(commits) < 4 else f"{len(commits)} commits (provenance.json)"
    changed = ", with uncommitted changes" if runs.dirty.any() else ""
    return f"Code: {named}{changed}."


def rates(runs: pd.DataFrame) -> str:
    """The peak learning rate of each method: curves depend on it."""
    used = runs.groupby("label", sort=False).lr.agg(lambda lr: extent(lr, "{:g}"))
    rates = listed(f"{label} {lr}" for label, lr in used.items())
    return f"Peak learning rates (from experiments/methods or, tuned, experiments/tuned): {rates}."


def intervals(runs: pd.DataFrame) -> str:
    """How seeds are shown."""
    if runs.groupby(["study", "model", "label"]).size().max() > 1:
        if "aggregate" in runs and set(runs["aggregate"]) == {"median"}:
            return "Lines are medians over seeds, bands 95 % intervals of order statistics, if any."
        return "Lines are means over seeds, bands 95 % Student-t intervals of the mean loss."
    return "One seed: no interval can be given."


def elsewhere(table: pd.DataFrame | None) -> str:
    """On which further documents models were measured; nothing where they were not."""
    if table is None:
        return ""
    first = table.iloc[0]
    return (
        f"The last columns: the models of {len(table)} of the runs on {first.documents} held-out "
        f"documents of {first.source} (fingerprint {first.fingerprint[:8]}, {first.tokens:,.0f} "
        f"tokens of the runs' own tokenizer; its unigram loss {first.unigram_loss:.4f}). "
    )


def extent(values: pd.Series, form: str) -> str:
    """``4`` or ``4–8``."""
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low}–{high}"


def listed(items: Iterable[str]) -> str:
    """``a, b and c``."""
    words = list(items)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def data_names(runs: pd.DataFrame) -> str:
    """The data sets by name, with the start of their fingerprints."""
    sets = runs.drop_duplicates(["data_id", "data_fingerprint"]).sort_values("data_id")
    return listed(f"{d.data_id} (fingerprint {d.data_fingerprint[:8]})" for d in sets.itertuples())
