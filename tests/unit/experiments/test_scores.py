"""Which evaluation counts, and under which names its metrics stand in the summary."""

import math
from typing import Any

import pytest

from experiments import scores
from experiments.spec import ScoreSpec

ROWS: list[dict[str, Any]] = [
    {"step": 5, "split": "train", "loss": 0.1, "lr": 1.0},
    {"step": 5, "split": "validation", "loss": 0.7, "f1": 0.6, "accuracy": 0.5},
    {"step": 5, "split": "mismatched", "loss": 0.8, "f1": 0.9, "accuracy": 0.9},
    {"step": 10, "split": "validation", "loss": 0.5, "f1": 0.8, "accuracy": 0.7},
    {"step": 10, "split": "mismatched", "loss": 0.6, "f1": 0.1, "accuracy": 0.2},
    {"step": 15, "split": "validation", "loss": 0.6, "f1": 0.8, "accuracy": 0.75},
    {"step": 15, "split": "mismatched", "loss": 0.9, "f1": 0.3, "accuracy": 0.4},
]
LAST = {row["split"]: {k: row[k] for k in ("loss", "f1", "accuracy")} for row in ROWS[-2:]}


def test_the_last_evaluation_counts_and_the_best_is_told() -> None:
    found = scores.summary(ScoreSpec(metric="accuracy", select="last"), ROWS[:-4] + ROWS[-2:], LAST)
    assert found == {
        "score_metric": "accuracy",
        "select": "last",
        "aggregate": "mean",
        "final": {
            "validation_loss": 0.6,
            "f1": 0.8,
            "accuracy": 0.75,
            "mismatched_loss": 0.9,
            "mismatched_f1": 0.3,
            "mismatched_accuracy": 0.4,
            "score": 0.75,
        },
        "last_score": 0.75,
        "best_score": 0.75,
        "best_step": 15,
    }


def test_the_best_is_the_first_of_equals_and_gives_every_part() -> None:
    found = scores.summary(ScoreSpec(metric="f1", select="best"), ROWS, LAST)
    assert (found["best_step"], found["best_score"], found["last_score"]) == (10, 0.8, 0.8)
    assert found["final"]["accuracy"] == 0.7 and found["final"]["validation_loss"] == 0.5
    assert found["final"]["mismatched_accuracy"] == 0.2 and found["final"]["score"] == 0.8


def test_less_perplexity_is_better() -> None:
    found = scores.summary(ScoreSpec(metric="perplexity", select="best"), ROWS, LAST)
    assert found["best_step"] == 10
    assert found["final"]["score"] == pytest.approx(math.exp(0.5), rel=1e-15)
    assert found["last_score"] == pytest.approx(math.exp(0.6), rel=1e-15)


def test_a_diverged_run_has_no_score_and_a_run_without_score_its_metrics() -> None:
    diverged = scores.summary(ScoreSpec(metric="f1", select="best"), ROWS, {})
    assert diverged["final"] == {} and diverged["best_score"] is None
    assert scores.summary(None, ROWS, {"validation": {"loss": 1.0}}) == {
        "final": {"validation_loss": 1.0}
    }
