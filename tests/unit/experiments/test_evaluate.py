"""Evaluation against closed forms and scikit-learn."""

import math
from types import SimpleNamespace

import numpy as np
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


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("constant", [False, True])
def test_classification_metrics_are_scikit_learns(classes: int, constant: bool) -> None:
    draw = np.random.default_rng(classes)
    logits = torch.tensor(draw.normal(size=(50, classes)))
    if constant:  # one class predicted throughout, and not class 1: F1 of an absent class is 0
        logits[:, 0] = 10
    labels = torch.tensor(draw.integers(classes, size=50))
    rows = [(logits[i], labels[i]) for i in range(50)]
    batches = evaluate.batches(
        rows,
        16,
        lambda part: {
            "logits": torch.stack([row[0] for row in part]),
            "labels": torch.stack([row[1] for row in part]),
        },
    )
    found = evaluate.classification(Classifier(), batches)
    predicted = logits.argmax(1)
    assert found["accuracy"] == accuracy_score(labels, predicted)
    average = {2: "binary", 4: "macro"}[classes]
    assert found["f1"] == f1_score(labels, predicted, average=average, zero_division=0)
    whole = nn.functional.cross_entropy(logits, labels).item()
    assert found["loss"] == pytest.approx(whole, rel=1e-12)


def test_perplexity_of_a_huge_loss_is_infinite() -> None:
    assert scores.perplexity(1000.0) == math.inf
