"""The table of sources and the words for what is wrong in one."""

from pathlib import Path

import pytest

from experiments.data.sources import load_sources, source_of
from experiments.errors import UserError
from experiments.spec import DataSpec


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
            "mnli_mismatched",
            "qnli",
            "rte",
            "wnli",
        )
    }


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
