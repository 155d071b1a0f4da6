"""Evaluation: held-out loss without bias, the papers' biased figure, classification metrics."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from sklearn.metrics import accuracy_score, f1_score
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
    """Row-weighted loss, accuracy and F1 over the whole held-out set.

    F1 is that of class 1 for two classes, the unweighted mean over classes for more.
    """
    losses, counts, predicted, actual = [], [], [], []
    with evaluating(model):
        for batch in held_out:
            output = model(**_on_device(model, batch))
            losses.append(output.loss.item())
            counts.append(len(batch["labels"]))
            predicted += output.logits.argmax(-1).tolist()
            actual += batch["labels"].tolist()
    average = f1_average(output.logits.shape[-1])
    return {
        "loss": token_weighted_mean(losses, counts),
        "accuracy": float(accuracy_score(actual, predicted)),
        "f1": float(f1_score(actual, predicted, average=average, zero_division=0.0)),
    }


def f1_average(classes: int) -> str:
    """scikit-learn's name of the averaging that :func:`classification` uses."""
    return "binary" if classes == 2 else "macro"


def _on_device(model: nn.Module, batch: Batch) -> Batch:
    device = next(model.parameters()).device
    return {key: value.to(device) for key, value in batch.items()}
