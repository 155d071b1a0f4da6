"""Epochs of a suite as updates, and a study's score, against hand counts."""

from pathlib import Path
from typing import Any

import pytest

from experiments import spec, suites
from experiments.data.sources import source_of
from experiments.errors import UserError


def study(task: str = "mrpc", data: dict[str, Any] | None = None, **train: Any) -> suites.Study:
    content = {
        "id": "a", "task": task, "data": data or {}, "models": ["minilm_l6"], "methods": ["adamw"],
        "seeds": [0, 1], "train": {"batch_size": 16, "sequence_length": 64, "log_every": 5,
                                   "checkpoint_every": 50, **train},
    }  # fmt: skip
    return spec.parse(suites.Study, content, "suite.yaml")


@pytest.mark.parametrize(
    ("task", "data", "epochs", "epoch", "steps"),
    [
        ("mrpc", {}, 3, 230, 690),  # 3,668 rows in batches of 16: 229.25
        ("mrpc", {"max_documents": 320}, 2, 20, 40),
        ("mrpc", {"slice": "tuning"}, 1, 46, 46),  # a fifth: 733.6 rows
        ("wnli", {}, 0.5, 40, 20),  # 635 rows: 39.7
    ],
)
def test_an_epoch_sees_the_training_rows_and_ends_with_an_evaluation(
    task: str, data: dict[str, Any], epochs: float, epoch: int, steps: int
) -> None:
    train = study(task, data, epochs=epochs).train
    assert (train.eval_every, train.steps) == (epoch, steps)


def test_another_rhythm_of_evaluation_is_kept() -> None:
    assert study(epochs=1, eval_every=10).train.eval_every == 10


@pytest.mark.parametrize(
    ("task", "train", "message"),
    [
        ("mrpc", {"epochs": 1, "steps": 5}, "'train' has 'steps' or 'epochs', not both"),
        ("mrpc", {"epochs": 0}, "'train.epochs' is a number above 0 (got 0)"),
        ("mrpc", {"epochs": 1, "batch_size": "x"}, "'train.epochs' needs 'train.batch_size'"),
        ("docstring_origin", {"epochs": 1}, "states no 'train_rows' of 'docstring_origin'"),
        ("mprc", {"epochs": 1}, "unknown task 'mprc'; did you mean 'mrpc'?"),
    ],
)
def test_what_cannot_be_counted_is_told(task: str, train: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        study(task, **train)
    assert str(caught.value).startswith("suite.yaml: ") and message in str(caught.value)


@pytest.mark.parametrize(
    ("task", "metric", "labels"),
    [
        ("cola", "matthews", 2), ("sst2", "accuracy", 2), ("mrpc", "f1", 2),
        ("stsb", "pearson", None), ("qqp", "accuracy", 2), ("mnli", "accuracy", 3),
        ("qnli", "accuracy", 2), ("rte", "accuracy", 2), ("wnli", "accuracy", 2),
    ],
)  # fmt: skip
def test_each_task_of_glue_is_ranked_by_its_metric(
    task: str, metric: str, labels: int | None
) -> None:
    file = suites._read(suites.TaskFile, "tasks", task)
    source = source_of(spec.parse(spec.DataSpec, file.data, task))
    assert file.task == "finetune" and file.score.metric == metric
    assert source.metrics[0] == metric
    assert (len(source.labels) if source.labels else None) == labels


def test_a_suite_with_another_tasks_metric_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("models", "methods"):
        (tmp_path / folder).symlink_to(suites.HOME / folder)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mrpc.yaml").write_text(
        "task: finetune\ndata: {source: glue_mrpc}\nscore: {metric: matthews, select: last}\n"
    )
    (tmp_path / "suites").mkdir()
    content = {"description": "d", "studies": [spec.to_plain(study(steps=5, eval_every=5))]}
    (tmp_path / "suites" / "s.yaml").write_text(spec.to_yaml(suites.SuiteFile(**content)))
    monkeypatch.setattr(suites, "HOME", tmp_path)
    suites._read.cache_clear()
    try:
        with pytest.raises(
            UserError, match="study a: score.metric: .* f1 or accuracy, not by 'mat"
        ):
            suites.expand("s")
    finally:
        suites._read.cache_clear()
