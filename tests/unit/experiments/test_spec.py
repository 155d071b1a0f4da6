"""The run specification: round trips, identity, and the words for mistakes."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import spec
from experiments.errors import UserError
from experiments.spec import DataSpec, RunSpec, parse

from .conftest import make_run, run_content


@given(
    lr=st.floats(1e-12, 10, allow_nan=False),
    args=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
        st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
        | st.lists(st.floats(0, 1), max_size=3),
        max_size=4,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_run_survives_yaml(lr: float, args: dict[str, Any], seed: int) -> None:
    content = run_content()
    content["method"] = {"name": "gwt", "lr": lr, "args": args}
    content["seeds"] = {"weights": seed, "data": 0}
    run = parse(RunSpec, content, "test")
    from experiments.files import _StrictLoader, yaml

    again = parse(RunSpec, yaml.load(spec.to_yaml(run), Loader=_StrictLoader), "test")
    assert again == run
    assert again.run_id == run.run_id


def test_labels_and_resources_do_not_change_the_identity_and_the_rest_does() -> None:
    base = make_run(run_content())
    for key, value in {"suite": "other", "smoke": True, "resources": {"mem_mb": 9}}.items():
        assert make_run(run_content() | {key: value}).run_id == base.run_id
    other_study = make_run(run_content() | {"study": "other"})
    assert other_study.config_hash == base.config_hash
    changes: list[tuple[str, Any]] = [
        ("train.steps", 13),
        ("train.schedule.min_lr_ratio", 0.2),
        ("method.lr", 2e-2),
        ("model.shape.hidden_size", 32),
        ("data.max_documents", 5),
        ("seeds", {"weights": 0, "data": 1}),
        ("threads", 2),
    ]
    hashes = {base.config_hash}
    for path, value in changes:
        content = copy.deepcopy(run_content())
        *parents, last = path.split(".")
        here = content
        for part in parents:
            here = here[part]
        here[last] = value
        hashes.add(make_run(content).config_hash)
    assert len(hashes) == len(changes) + 1


def test_run_id_is_readable() -> None:
    run = make_run(run_content() | {"seeds": {"weights": 3, "data": 4}})
    assert run.run_id == f"test-tiny-adamw-s3d4-{run.config_hash[:8]}"
    assert run.data.data_id.startswith("text_files-bpe300-")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("train.stepps", 3, "run.yaml: unknown key 'train.stepps'; did you mean 'steps'?"),
        ("modle", {}, "run.yaml: unknown key 'modle'; did you mean 'model'?"),
        ("data.tokenizer.vocabsize", 1, "unknown key 'data.tokenizer.vocabsize'; did you mean"),
        ("train.schedule.name", "cosin", "train.schedule.name: input should be 'cosine', 'linear'"),
        ("train.steps", 0, "train.steps: input should be greater than 0 (got 0)"),
        ("train.batch_size", 9, "'batch_size' (9) must be a multiple of 'micro_batches' (2)"),
        ("train.checkpoint_every", 5, "must be a multiple of 'log_every' (2)"),
        ("train.sequence_length", 32, "(16) and 'train.sequence_length' (32) must be equal"),
        ("method.lr", "fast", "method.lr: input should be a valid number"),
        ("data.tokenizer", {"kind": "hub"}, "of kind 'hub' takes 'id' and no other key"),
        ("model.path", "/somewhere", "exactly one of 'shape', 'package', 'path', 'hub'"),
        ("task", "finetune", "these rows are tokenized by their model"),
        ("score", {"metric": "f1"}, "key 'score.select' is missing"),
        ("score", {"metric": "f1", "select": "first"}, "score.select: input should be 'last' or"),
        ("score", {"metric": "accurracy", "select": "last"}, "score.metric: input should be"),
        (
            "score",
            {"metric": "f1", "select": "last", "aggregate": "best"},
            "score.aggregate: input should be 'mean' or",
        ),
        ("study", "Bad Name", "study: string should match pattern"),
        ("train.schedule", {"name": "linear", "min_lr_ratio": 0.1}, "belongs to the schedule"),
    ],
)
def test_mistakes_are_named(path: str, value: Any, message: str) -> None:
    content = run_content()
    *parents, last = path.split(".")
    here = content
    for part in parents:
        here = here[part]
    here[last] = value
    with pytest.raises(UserError) as caught:
        parse(RunSpec, content, "run.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("run.yaml: ")


def test_fine_tuning_names_its_score() -> None:
    content = run_content() | {"task": "finetune", "data": {"source": "glue_mrpc"}}
    with pytest.raises(UserError, match="fine-tuning needs 'score: {metric"):
        parse(RunSpec, content, "run.yaml")


def test_every_problem_gets_its_line() -> None:
    content = run_content(steps=-1, eval_everi=3)
    del content["method"]
    with pytest.raises(UserError) as caught:
        parse(RunSpec, content, "run.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "run.yaml: key 'method' is missing" in lines


@pytest.mark.parametrize(
    ("content", "label"),
    [
        ({"tokenizer": {"kind": "hub", "id": "google-t5/t5-base"}}, "c4-t5-base-"),
        ({"tokenizer": {"kind": "local", "path": "a/Some Folder/"}}, "c4-some-folder-"),
        ({}, "c4-rows-"),
    ],
)
def test_data_id_names_source_and_tokenizer(content: dict[str, Any], label: str) -> None:
    length = {"sequence_length": 8} if content else {}
    data = parse(DataSpec, {"source": "c4", **length, **content}, "data.yaml")
    assert data.data_id.startswith(label)
    assert len(data.data_id) == len(label) + 8


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("task: pretrain\n")
    with pytest.raises(UserError, match=r"run\.yaml: key 'study' is missing"):
        spec.load(RunSpec, path)
