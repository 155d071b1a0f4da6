"""Evaluation: held-out loss without bias, the papers' biased figure, metrics of labelled rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor, nn

from experiments.scores import perplexity

Batch = dict[str, Tensor]
Collate = Callable[[list[Any]], Batch]


def token_weighted_mean(losses: Sequence[float], counts: Sequence[int]) -> float:
    """Mean loss per predicted token, from per-batch means and their numbers of tokens."""
    weighted = math.fsum(loss * count for loss, count in zip(losses, counts, strict=True))
    return weighted / sum(counts)


def papers_biased_mean(losses: Sequence[float]) -> float:
    """The figure of GaLore's script and its copies: sum of batch means over batches + 1.

    Its batch counter starts at one, so the printed loss is too low by one part in n + 1.
    """
    return math.fsum(losses) / (len(losses) + 1)


def batches(rows: Any, size: int, collate: Collate) -> Iterator[Batch]:
    """All rows in order; the last batch may be smaller."""
    for start in range(0, len(rows), size):
        yield collate([rows[i] for i in range(start, min(start + size, len(rows)))])


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; gives the former mode back."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def language_loss(model: nn.Module, held_out: Iterable[Batch]) -> dict[str, float]:
    """Loss over the whole held-out set, in nats per predicted token.

    Args:
        model: a causal language model; it shifts the labels itself.
        held_out: batches with ``input_ids`` and ``labels`` of shape (rows, length).

    Returns:
        ``loss``, ``perplexity`` and ``papers_biased_loss``.
    """
    losses, counts = [], []
    with evaluating(model):
        for batch in held_out:
            losses.append(model(**_on_device(model, batch)).loss.item())
            counts.append(int((batch["labels"][:, 1:] != -100).sum()))
    loss = token_weighted_mean(losses, counts)
    return {
        "loss": loss,
        "perplexity": perplexity(loss),
        "papers_biased_loss": papers_biased_mean(losses),
    }


def classification(model: nn.Module, held_out: Iterable[Batch]) -> dict[str, float]:
    """Row-weighted loss and the metrics of GLUE's classifications over the whole held-out set.

    Returns:
        ``loss``; ``accuracy``; ``f1``: of class 1 for two classes, the unweighted mean over classes
        for more, 0 where nothing was predicted or is there; ``matthews``: Matthews' correlation,
        0 where all predictions or all labels are of one class.
    """
    loss, outputs, actual = _outputs(model, held_out)
    predicted = outputs.argmax(-1).numpy()
    average = f1_average(outputs.shape[-1])
    return {
        "loss": loss,
        "accuracy": float(accuracy_score(actual, predicted)),
        "f1": float(f1_score(actual, predicted, average=average, zero_division=0.0)),
        "matthews": float(matthews_corrcoef(actual, predicted)),
    }


def regression(model: nn.Module, held_out: Iterable[Batch]) -> dict[str, float]:
    """Row-weighted squared error and correlations of predictions with labels.

    Args:
        model: one output a row; its loss is the mean squared error.
        held_out: batches with float ``labels`` of shape (rows,).

    Returns:
        ``loss``, ``pearson`` and ``spearman`` (ties get their mean rank). A correlation is 0 where
        it is not defined: fewer than two rows, or all predictions or all labels equal.
    """
    loss, outputs, actual = _outputs(model, held_out)
    predicted, labels = outputs[:, 0].double().numpy(), actual.double().numpy()
    defined = len(labels) > 1 and np.ptp(predicted) > 0 and np.ptp(labels) > 0
    return {
        "loss": loss,
        "pearson": float(pearsonr(predicted, labels).statistic) if defined else 0.0,
        "spearman": float(spearmanr(predicted, labels).statistic) if defined else 0.0,
    }


def predictions(model: nn.Module, rows: Iterable[Batch]) -> list[float]:
    """What the model answers to each row: class number, or value of a regression."""
    with evaluating(model):
        outputs = [model(**_on_device(model, batch)).logits.float().cpu() for batch in rows]
    found = torch.cat(outputs)
    return (found[:, 0] if found.shape[-1] == 1 else found.argmax(-1)).tolist()


def _outputs(model: nn.Module, held_out: Iterable[Batch]) -> tuple[float, Tensor, Tensor]:
    """Mean loss a row, outputs of shape (rows, outputs), labels of shape (rows,)."""
    losses, outputs, labels = [], [], []
    with evaluating(model):
        for batch in held_out:
            output = model(**_on_device(model, batch))
            losses.append(output.loss.item())
            outputs.append(output.logits.float().cpu())
            labels.append(batch["labels"].cpu())
    if not losses:
        raise ValueError("nothing to evaluate: the held-out set has no rows")
    mean = token_weighted_mean(losses, [len(part) for part in labels])
    return mean, torch.cat(outputs), torch.cat(labels)


def f1_average(classes: int) -> str:
    """scikit-learn's name of the averaging that :func:`classification` uses."""
    return "binary" if classes == 2 else "macro"


def _on_device(model: nn.Module, batch: Batch) -> Batch:
    device = next(model.parameters()).device
    return {key: value.to(device) for key, value in batch.items()}
