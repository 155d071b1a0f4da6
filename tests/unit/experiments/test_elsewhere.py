"""A finished run's model on documents of another source: the numbers, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments import elsewhere, pretrain, session
from experiments.errors import UserError
from experiments.spec import RunSpec

from .conftest import make_run, run_content

TEXTS = ["the moments of each weight and a step size " * 3, "optimizer </s> keeps the weight " * 4]


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="module")
def made(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, Path, Path]:
    """A finished run, its folder, and the folder of prepared data."""
    root = tmp_path_factory.mktemp("elsewhere")
    run = make_run(run_content(steps=6))
    (root / "prepared").mkdir()
    (root / "prepared" / run.data.data_id).symlink_to(prepared)
    work = root / "work" / run.run_id
    work.mkdir(parents=True)
    session.execute(run, root / "runs" / run.run_id, prepared, work, pretrain.make_task)
    return run, root / "runs" / run.run_id, root / "prepared"


def test_loss_is_that_of_each_token_given_those_before_it_in_its_row(made) -> None:
    run, folder, data = made
    (row,) = elsewhere.losses([folder], "other", TEXTS, data).itertuples()
    tokenizer = AutoTokenizer.from_pretrained(data / run.data.data_id / "tokenizer")
    end = tokenizer.eos_token_id
    ids = [
        token
        for text in TEXTS
        for token in (*tokenizer.encode(text, split_special_tokens=True), end)
    ]
    rows = torch.tensor(ids[: len(ids) // 16 * 16]).view(-1, 16)
    model = AutoModelForCausalLM.from_pretrained(folder.parents[1] / "work" / run.run_id / "model")
    with torch.no_grad():
        scores = model(input_ids=rows).logits[:, :-1].double()
    expected = cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
    assert row.loss == pytest.approx(float(expected), rel=1e-5)  # float32 sums
    assert row.tokens == rows[:, 1:].numel()
    assert (row.documents, row.characters) == (2, sum(map(len, TEXTS)))
    train = np.fromfile(data / run.data.data_id / "train-00000.bin", "<u2")
    train = train[: len(train) // 16 * 16]
    frequency = (np.bincount(train, minlength=300) + 1) / (len(train) + 300)
    assert row.unigram_loss == pytest.approx(-np.log(frequency[rows[:, 1:]]).mean(), rel=1e-12)
    other = elsewhere.losses([folder], "other", TEXTS[::-1], data)
    assert other.fingerprint[0] != row.fingerprint


def test_adapters_are_saved_merged_and_recognised_by_their_loss(prepared: Path, tmp_path) -> None:
    run = make_run(run_content(steps=6), name="lora", lr=1e-2, args={"rank": 4})
    folder, work = (tmp_path / part / run.run_id for part in ("runs", "work"))
    work.mkdir(parents=True)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / run.data.data_id).symlink_to(prepared)
    session.execute(run, folder, prepared, work, pretrain.make_task)
    assert elsewhere.losses([folder], "other", TEXTS, tmp_path / "prepared").loss.notna().all()
    summary = json.loads((folder / "summary.json").read_text())
    summary["final"]["validation_loss"] *= 1.001
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match="these are not the weights with which"):
        elsewhere.losses([folder], "other", TEXTS, tmp_path / "prepared")


def test_what_cannot_be_asked_is_named(made, tmp_path: Path) -> None:
    run, folder, data = made
    with pytest.raises(UserError, match="have 3 tokens, less than one row of 16"):
        elsewhere.losses([folder], "other", ["a a"], data)
    with pytest.raises(UserError, match="summary.json is missing: the run has not finished"):
        elsewhere.losses([tmp_path], "other", TEXTS, data)
    with pytest.raises(UserError, match="source 'pydocs' has no validation part"):
        elsewhere.texts_of("pydocs")
    with pytest.raises(UserError, match="source 'glue_mrpc' is for classification"):
        elsewhere.texts_of("glue_mrpc")
    copy = tmp_path / "runs" / run.run_id
    copy.mkdir(parents=True)
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="the final weights of .* are no longer there"):
        elsewhere.losses([copy], "other", TEXTS, data)
    (tmp_path / "work").symlink_to(folder.parents[1] / "work")
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps(summary | {"weights_sha256": "0"}))
    with pytest.raises(UserError, match="these are not the weights with which"):
        elsewhere.losses([copy], "other", TEXTS, data)
    (copy / "summary.json").write_text(json.dumps(summary | {"diverged": True}))
    assert elsewhere.losses([copy], "other", TEXTS, data).loss.isna().all()
