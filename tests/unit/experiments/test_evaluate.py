"""Evaluation against closed forms and scikit-learn."""

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from experiments import evaluate, scores


class Fixed(nn.Module):
    """Answers each batch with the loss that the batch carries."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=input_ids[0, 0].double())


def batch(loss: float, rows: int, length: int, ignored: int = 0) -> dict[str, torch.Tensor]:
    labels = torch.zeros(rows, length, dtype=torch.long)
    labels[0, 1 : 1 + ignored] = -100
    return {"input_ids": torch.full((rows, length), loss), "labels": labels}


@pytest.mark.parametrize("batches", [1, 7])
def test_a_constant_loss_is_reported_as_it_is(batches: int) -> None:
    found = evaluate.language_loss(Fixed(), [batch(2.5, 4, 8)] * batches)
    assert found["loss"] == 2.5
    assert found["perplexity"] == math.exp(2.5)
    assert found["papers_biased_loss"] == pytest.approx(2.5 * batches / (batches + 1), rel=1e-15)


def test_tokens_have_equal_weight_whatever_their_batch() -> None:
    # 4 x 7 tokens at 1, 1 x 7 tokens at 3, and 2 x 7 - 4 tokens at 5
    found = evaluate.language_loss(
        Fixed(), [batch(1.0, 4, 8), batch(3.0, 1, 8), batch(5.0, 2, 8, ignored=4)]
    )
    assert found["loss"] == pytest.approx((28 * 1 + 7 * 3 + 10 * 5) / 45, rel=1e-15)
    assert found["papers_biased_loss"] == pytest.approx(9 / 4)


def test_loss_does_not_depend_on_the_batch_size() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2,
        )
    )  # fmt: skip
    model.train()
    ids = torch.randint(50, (7, 12))

    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.stack(rows), "labels": torch.stack(rows)}

    logits = model(ids).logits[:, :-1].double()
    direct = nn.functional.cross_entropy(logits.reshape(-1, 50), ids[:, 1:].reshape(-1)).item()
    for size in (1, 3, 7):
        found = evaluate.language_loss(model, evaluate.batches(ids, size, collate))
        assert found["loss"] == pytest.approx(direct, rel=1e-6)  # float32 logits
    assert model.training


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


class Regressor(Classifier):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(
            loss=nn.functional.mse_loss(logits.squeeze(-1), labels), logits=logits
        )


def in_batches(logits: torch.Tensor, labels: torch.Tensor) -> Iterator[evaluate.Batch]:
    """Batches of 16 rows."""
    return evaluate.batches(
        list(zip(logits, labels, strict=True)),
        16,
        lambda part: {
            "logits": torch.stack([row[0] for row in part]),
            "labels": torch.stack([row[1] for row in part]),
        },
    )


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("constant", [False, True])
def test_classification_metrics_are_scikit_learns(classes: int, constant: bool) -> None:
    draw = np.random.default_rng(classes)
    logits = torch.tensor(draw.normal(size=(50, classes)))
    if constant:  # one class predicted throughout, and not class 1: F1 of an absent class is 0
        logits[:, 0] = 10
    labels = torch.tensor(draw.integers(classes, size=50))
    found = evaluate.classification(Classifier(), in_batches(logits, labels))
    predicted = logits.argmax(1)
    assert found["accuracy"] == accuracy_score(labels, predicted)
    average = {2: "binary", 4: "macro"}[classes]
    assert found["f1"] == f1_score(labels, predicted, average=average, zero_division=0)
    whole = nn.functional.cross_entropy(logits, labels).item()
    assert found["loss"] == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("case", ["random", "one class predicted", "one class there", "all wrong"])
def test_matthews_is_its_formula_on_the_counts(case: str) -> None:
    draw = np.random.default_rng(3)
    predicted, labels = draw.integers(2, size=(2, 60))
    if case == "one class predicted":
        predicted[:] = 1
    elif case == "one class there":
        labels[:] = 0
    elif case == "all wrong":
        predicted = 1 - labels
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), 2).double()
    found = evaluate.classification(Classifier(), in_batches(logits, torch.tensor(labels)))
    tp, tn, fp, fn = (
        float(((predicted == p) & (labels == y)).sum()) for p, y in ((1, 1), (0, 0), (1, 0), (0, 1))
    )
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    expected = (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0
    assert found["matthews"] == pytest.approx(expected, abs=1e-12)


def test_correlations_with_ties_are_those_of_numpy_and_pandas() -> None:
    draw = np.random.default_rng(4)
    labels = draw.integers(0, 6, size=70) / 1.0  # many ties, as STS-B has
    predicted = np.float32(np.round(labels + draw.normal(size=70), 1))
    found = evaluate.regression(
        Regressor(), in_batches(torch.tensor(predicted)[:, None], torch.tensor(labels))
    )
    assert found["pearson"] == pytest.approx(np.corrcoef(predicted, labels)[0, 1], abs=1e-12)
    ranks = pd.DataFrame({"predicted": predicted, "labels": labels}).rank()
    expected = np.corrcoef(ranks.predicted, ranks.labels)[0, 1]
    assert found["spearman"] == pytest.approx(expected, abs=1e-12)
    assert found["loss"] == pytest.approx(np.mean((predicted - labels) ** 2), rel=1e-6)


@pytest.mark.parametrize(("rows", "constant"), [(20, "predicted"), (20, "labels"), (1, "")])
def test_an_undefined_correlation_is_zero(rows: int, constant: str) -> None:
    predicted, labels = torch.rand(2, rows)
    {"predicted": predicted, "labels": labels}.get(constant, torch.empty(0)).fill_(0.3)
    found = evaluate.regression(Regressor(), in_batches(predicted[:, None], labels))
    assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


@pytest.mark.parametrize("measure", [evaluate.classification, evaluate.regression])
def test_no_rows_no_metrics(measure: Callable[..., dict[str, float]]) -> None:
    with pytest.raises(ValueError, match="nothing to evaluate"):
        measure(Classifier(), iter([]))


def test_perplexity_of_a_huge_loss_is_infinite() -> None:
    assert scores.perplexity(1000.0) == math.inf
