"""The table of sources and the words for what is wrong in one."""

from pathlib import Path
from typing import Any

import pytest

from experiments.data.sources import Sources, load_sources, source_of
from experiments.errors import UserError
from experiments.spec import DataSpec, parse


def test_the_table_is_valid_and_names_the_official_fields() -> None:
    table = load_sources()
    # Fields of the data sets on the hub, from their cards.
    assert table["glue_mrpc"].fields == {
        "text": "sentence1",
        "text_pair": "sentence2",
        "label": "label",
    }
    assert table["glue_qqp"].fields["text_pair"] == "question2"
    assert table["glue_mnli"].fields["text"] == "premise"
    assert table["dolly"].fields["input"] == "context"
    assert {name for name in table if name.startswith("glue_")} == {
        f"glue_{task}"
        for task in (
            "cola",
            "sst2",
            "mrpc",
            "qqp",
            "stsb",
            "mnli",
            "ax",
            "qnli",
            "rte",
            "wnli",
        )
    }


def test_glue_has_the_official_classes_metrics_and_sizes() -> None:
    # From the table of the GLUE paper and the features of nyu-mll/glue on the hub.
    expected = {
        "cola": ("unacceptable acceptable", "matthews", 8551),
        "sst2": ("negative positive", "accuracy", 67349),
        "mrpc": ("not_equivalent equivalent", "f1 accuracy", 3668),
        "qqp": ("not_duplicate duplicate", "accuracy f1", 363846),
        "stsb": ("", "pearson spearman", 5749),
        "mnli": ("entailment neutral contradiction", "accuracy", 392702),
        "qnli": ("entailment not_entailment", "accuracy", 104743),
        "rte": ("entailment not_entailment", "accuracy", 2490),
        "wnli": ("not_entailment entailment", "accuracy", 635),
        "ax": ("entailment neutral contradiction", "matthews", None),
    }
    for task, (labels, metrics, rows) in expected.items():
        source = load_sources()[f"glue_{task}"]
        assert source.id == "nyu-mll/glue" and source.config == task
        assert (source.labels or []) == labels.split(), task
        assert source.metrics == metrics.split() and source.train_rows == rows, task
    assert load_sources()["glue_mnli"].splits == {
        "train": "train",
        "validation": "validation_matched",
        "validation_mismatched": "validation_mismatched",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["a", "b"]}, r"expected some of \['accuracy', 'f1', 'matthews'\], got \[\]"),
        ({"metrics": ["accuracy"]}, r"expected some of \['pearson', 'spearman'\]"),
        ({"task": "text", "fields": {"text": "t"}, "metrics": ["f1"]}, r"expected some of \[\]"),
    ],
)
def test_metrics_fit_the_labels(changes: dict[str, Any], message: str) -> None:
    entry = {
        "title": "t", "kind": "local", "task": "classification", "licence": "l",
        "fields": {"text": "t", "label": "l"}, "splits": {"train": "train"},
    }  # fmt: skip
    with pytest.raises(UserError, match=message):
        parse(Sources, {"mine": entry | changes}, "sources.yaml")


def test_an_unknown_source_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown data source 'pydoc'; did you mean 'pydocs'"):
        source_of(DataSpec(source="pydoc"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("licence:", "license:"), "licen[cs]e"),
        (("kind: local", "kind: locale"), "locale"),
        (("text: text", "txt: text"), "missing .*'text'.* unknown .*'txt'"),
    ],
)
def test_a_wrong_entry_is_explained(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    entry = (
        "mine:\n  title: mine\n  kind: local\n  task: text\n  licence: mine\n"
        "  fields: {text: text}\n  splits: {train: train}\n"
    )
    file = tmp_path / "sources.yaml"
    file.write_text(entry.replace(*change))
    with pytest.raises(UserError, match=message) as error:
        load_sources(file)
    assert str(file) in str(error.value)


def test_pydocs_needs_only_what_the_lock_pins_to_one_version(repo: Path) -> None:
    lock = (repo / "requirements.lock").read_text().lower().splitlines()
    for source in ("pydocs", "docstring_origin"):
        for name in load_sources()[source].distributions:
            assert len([line for line in lock if line.startswith(f"{name}==")]) == 1, name
