"""Labelled rows: official splits as they are, labels checked, the origin task honest."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.data import load_classification
from experiments.data.prepare import prepare
from experiments.data.sources import load_sources
from experiments.errors import UserError
from experiments.spec import DataSpec

from .conftest import sentences, write_rows

MRPC = {"sentence1": "One of them.", "sentence2": "The other.", "label": 1, "idx": 0}


def glue_like(folder: Path, train: list[dict[str, Any]], validation: list[dict[str, Any]]) -> Path:
    """Files as a copy of the hub's repository has them, the task in a folder of its own."""
    (folder / "mrpc").mkdir(parents=True)
    write_rows(folder / "mrpc" / "train-00000-of-00001.jsonl", train)
    write_rows(folder / "mrpc" / "validation-00000-of-00001.jsonl", validation)
    return folder


def test_an_official_split_keeps_its_rows_and_their_order(tmp_path: Path) -> None:
    train = [
        {**MRPC, "sentence1": text, "label": n % 3 % 2} for n, text in enumerate(sentences(1, 9))
    ]
    validation = [{**MRPC, "label": label} for label in (1, 0, 1, 0, 0)]
    path = glue_like(tmp_path / "glue", [*train, train[0]], validation)
    prepare(DataSpec(source="glue_mrpc", path=str(path)), tmp_path / "out")
    splits, labels, manifest = load_classification(tmp_path / "out")
    assert labels == ["not_equivalent", "equivalent"]
    assert splits["train"]["text"] == [row["sentence1"] for row in [*train, train[0]]]
    assert splits["train"]["text_pair"] == ["The other."] * 10
    assert splits["validation"]["label"] == [1, 0, 1, 0, 0]
    assert splits["train"].column_names == manifest["fields"] == ["text", "text_pair", "label"]
    # 7 of 10 training labels are 0, and so are 3 of 5 held-out ones
    assert manifest["majority_accuracy"] == pytest.approx(0.6)


@pytest.mark.parametrize("how", ["folder", "link", "file"])
def test_files_in_data_local_need_no_path(tmp_path: Path, local: Path, how: str) -> None:
    path = glue_like(
        tmp_path / "glue", [{**MRPC, "sentence1": text} for text in sentences(1, 30)], [MRPC] * 3
    )
    if how == "folder":
        (path / "mrpc").rename(local / "glue_mrpc")
    elif how == "link":
        (local / "glue_mrpc").symlink_to(path)
    else:
        (local / "glue_mrpc").symlink_to(path / "mrpc" / "train-00000-of-00001.jsonl")
    with_path = DataSpec(source="glue_mrpc", path=str(path))
    manifest = prepare(DataSpec(source="glue_mrpc"), tmp_path / "out")
    assert manifest["source"]["files"]["train"] == ["train-00000-of-00001.jsonl"]
    assert manifest["splits"]["validation"]["rows"] == (2 if how == "file" else 3)
    assert manifest["data_id"] == DataSpec(source="glue_mrpc").data_id != with_path.data_id


def test_what_is_not_in_data_local_is_told(tmp_path: Path, local: Path) -> None:
    spec = DataSpec(source="text_files", tokenizer={"kind": "bpe", "vocab_size": 300},
                    sequence_length=16)  # fmt: skip
    with pytest.raises(UserError, match="not in data/local/text_files: put them, or a link"):
        prepare(spec, tmp_path / "out")
    (local / "glue_mrpc").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="gone: no such file or folder"):
        prepare(DataSpec(source="glue_mrpc"), tmp_path / "out")


def test_rows_are_limited_and_held_out(tmp_path: Path) -> None:
    file = write_rows(
        tmp_path / "rows.jsonl", [{**MRPC, "sentence1": text} for text in sentences(1, 30)]
    )
    spec = DataSpec(source="glue_mrpc", path=str(file), validation_documents=5, max_documents=12)
    prepare(spec, tmp_path / "out")
    splits, _, _ = load_classification(tmp_path / "out")
    train, validation = set(splits["train"]["text"]), set(splits["validation"]["text"])
    assert (len(train), len(validation), train & validation) == (12, 5, set())


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    rows = [{**MRPC, "sentence1": text, "label": n / 7} for n, text in enumerate(sentences(1, 30))]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    manifest = prepare(DataSpec(source="glue_stsb", path=str(file)), tmp_path / "out")
    splits, labels, _ = load_classification(tmp_path / "out")
    assert labels is None and manifest["majority_accuracy"] is None
    assert sorted([*splits["train"]["label"], *splits["validation"]["label"]]) == [
        pytest.approx(row["label"]) for row in rows
    ]


def test_names_of_labels_become_their_numbers(tmp_path: Path) -> None:
    rows = [{**MRPC, "label": name} for name in ("equivalent", "not_equivalent")]
    path = glue_like(tmp_path / "glue", rows, rows)
    prepare(DataSpec(source="glue_mrpc", path=str(path)), tmp_path / "out")
    assert load_classification(tmp_path / "out")[0]["train"]["label"] == [1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": 2}, "the label 2 is neither"),
        ({"label": "same"}, "the label 'same' is neither"),
        ({"label": None}, "the label None is neither"),
        ({"label": -1}, r"the label is hidden \(-1\): an unlabelled part can neither be trained"),
        ({"sentence2": None}, "the field 'sentence2' holds no text"),
    ],
)
@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_wrong_row_is_named_with_its_file(
    tmp_path: Path, changes: dict[str, Any], message: str, part: str
) -> None:
    parts = {"train": [MRPC] * 3, "validation": [MRPC] * 3}
    parts[part] = [MRPC, {**MRPC, **changes}, MRPC]
    path = glue_like(tmp_path / "glue", **parts)
    with pytest.raises(UserError, match=rf"{part}-00000-of-00001\.jsonl, row 2: {message}"):
        prepare(DataSpec(source="glue_mrpc", path=str(path)), tmp_path / "out")


@pytest.mark.parametrize("label", ["4.0", None, math.nan, -1.0])
def test_a_wrong_score_of_a_regression_is_named(tmp_path: Path, label: Any) -> None:
    rows = [{**MRPC, "label": 2.5}, {**MRPC, "label": label}]
    frame = pd.DataFrame({key: [row[key] for row in rows] for key in MRPC})
    if isinstance(label, str):
        frame["label"] = frame.label.astype(str)
    frame.to_parquet(tmp_path / "train.parquet")
    with pytest.raises(
        UserError, match=r"train\.parquet, row [12]: the label .*(no number|hidden)"
    ):
        prepare(DataSpec(source="stsb_subset", path=str(tmp_path)), tmp_path / "out")


def test_a_missing_field_and_a_broken_line_are_named(tmp_path: Path) -> None:
    short = {key: value for key, value in MRPC.items() if key != "sentence2"}
    path = glue_like(tmp_path / "a", [short], [MRPC])
    with pytest.raises(UserError, match=r"train-.*jsonl: no field 'sentence2'.* did you mean"):
        prepare(DataSpec(source="glue_mrpc", path=str(path)), tmp_path / "out")
    path = glue_like(tmp_path / "b", [MRPC] * 2, [MRPC])
    with (path / "mrpc" / "train-00000-of-00001.jsonl").open("a") as file:
        file.write('{"sentence1": "cut sh')
    with pytest.raises(UserError, match=r"train-.*jsonl: broken after row \d"):
        prepare(DataSpec(source="glue_mrpc", path=str(path)), tmp_path / "out")


NLI = {"premise": "Some of them.", "hypothesis": "None.", "label": 2, "idx": 0}


def nli(local: Path, **parts: list[dict[str, Any]]) -> None:
    """MNLI and AX as `data/local` holds them after `hf download`."""
    for source, config in (("glue_mnli", "mnli"), ("glue_ax", "ax")):
        (local / source / config).mkdir(parents=True)
    for part, rows in parts.items():
        home = "glue_ax/ax" if part == "test" else "glue_mnli/mnli"
        write_rows(local / home / f"{part}-00000-of-00001.jsonl", rows)


def test_mnli_has_two_measured_parts_and_ax_is_to_be_answered(tmp_path: Path, local: Path) -> None:
    nli(
        local,
        train=[{**NLI, "label": n % 3} for n in range(9)],
        validation_matched=[{**NLI, "label": 0}] * 4,
        validation_mismatched=[{**NLI, "label": 1}] * 5,
        test=[{**NLI, "label": -1}] * 6,
    )
    spec = DataSpec(source="glue_mnli", predict=["glue_ax"], validation_documents=4)
    manifest = prepare(spec, tmp_path / "out")
    splits, labels, _ = load_classification(tmp_path / "out")
    assert labels == ["entailment", "neutral", "contradiction"]
    assert manifest["unlabelled"] == ["ax"]
    assert {name: len(rows) for name, rows in splits.items()} == {
        "train": 9, "validation": 4, "validation_mismatched": 4, "ax": 6,
    }  # fmt: skip
    assert splits["validation"]["label"] == [0] * 4
    assert splits["validation_mismatched"]["label"] == [1] * 4
    assert splits["ax"].column_names == ["text", "text_pair"]


@pytest.mark.parametrize(
    ("part", "rows", "predict", "message"),
    [
        ("validation_mismatched", [], "glue_ax", "the validation_mismatched part has no rows"),
        ("validation_mismatched", None, "glue_ax", "no file of 'validation_mismatched'"),
        (
            "validation_mismatched",
            [NLI, NLI | {"label": -1}],
            "glue_ax",
            "row 1: a label, but that",
        ),
        ("test", [], "glue_ax", "the ax part has no rows"),
        ("test", [NLI], "glue_mrpc", "source 'glue_mrpc' has not the labels of 'glue_mnli'"),
    ],
)
def test_a_part_that_is_wrong_is_named(
    tmp_path: Path,
    local: Path,
    part: str,
    rows: list[dict[str, Any]] | None,
    predict: str,
    message: str,
) -> None:
    parts = dict.fromkeys(("train", "validation_matched", "validation_mismatched", "test"), [NLI])
    nli(local, **{name: r for name, r in (parts | {part: rows}).items() if r is not None})
    with pytest.raises(UserError, match=message):
        prepare(DataSpec(source="glue_mnli", predict=[predict]), tmp_path / "out")


def test_an_empty_part_is_refused(tmp_path: Path) -> None:
    path = glue_like(tmp_path / "glue", [MRPC], [])
    with pytest.raises(UserError, match="the validation part has no rows"):
        prepare(DataSpec(source="glue_mrpc", path=str(path)), tmp_path / "out")


def test_the_other_kind_is_refused(spec: DataSpec, tmp_path: Path) -> None:
    prepare(spec, tmp_path / "out")
    with pytest.raises(UserError, match="holds 'tokens' data, needed is 'classification'"):
        load_classification(tmp_path / "out")


def test_docstring_origin_is_balanced_split_by_module_and_gives_no_name_away(
    tmp_path: Path, install: Callable[..., None], add_source: Callable[..., None]
) -> None:
    modules = {}
    for library, seed in (("alpha", 1), ("beta", 2)):
        files = {}
        for module in range(20):
            # alpha has twice as many paragraphs a module, and both say the last one
            texts = sentences(100 * seed + module, 4 // seed)
            texts[0] += " See numpy.linalg.norm of it."
            shared = f"It is what np has in the module of {'ab' * (module + 1)} and no other."
            text = "\n\n".join([*texts, shared.replace("np", ("pandas", "scipy")[seed - 1])])
            path = f"{library}/m{module}.py"
            files[path] = f'"""{text}\n"""\n'
            modules.update(dict.fromkeys(texts, path))
        install(library, files)
    add_source(
        "origin", like="docstring_origin", distributions=["alpha", "beta"], labels=["alpha", "beta"]
    )
    spec = DataSpec(source="origin", validation_documents=10)
    manifest = prepare(spec, tmp_path / "out")
    splits, labels, _ = load_classification(tmp_path / "out")
    home: dict[str, set[str]] = {}
    for split, rows in splits.items():
        counts = Counter(rows["label"])
        assert counts[0] == counts[1] > 0
        home[split] = set()
        for text, label in zip(rows["text"], rows["label"], strict=True):
            assert "numpy" not in text and "pandas" not in text
            path = modules[text.replace("See it of it", "See numpy.linalg.norm of it")]
            assert path.startswith(labels[label])
            home[split].add(path)
    assert not home["train"] & home["validation"]
    assert manifest["majority_accuracy"] == 0.5


def test_docstring_pairs_follow_or_come_from_another_module(
    tmp_path: Path, install: Callable[..., None], add_source: Callable[..., None]
) -> None:
    place, home = {}, {}
    for library, seed in (("alpha", 1), ("beta", 2)):
        files = {}
        for module in range(20):
            # five make two pairs and one that is left over, fewer where one is taken for no prose
            texts = sentences(100 * seed + module, 5)
            place |= {text: number for number, text in enumerate(texts)}
            home |= dict.fromkeys(texts, (library, module))
            files[f"{library}/m{module}.py"] = '"""' + "\n\n".join(texts) + '\n"""\n'
        install(library, files)
    add_source("pairs", like="docstring_pairs", distributions=["alpha", "beta"])
    manifest = prepare(DataSpec(source="pairs", validation_documents=8), tmp_path / "out")
    splits, labels, _ = load_classification(tmp_path / "out")
    assert labels == ["elsewhere", "follows"]
    assert manifest["majority_accuracy"] == 0.5
    modules = {}
    for split, rows in splits.items():
        seen = [*rows["text"], *rows["text_pair"]]
        assert len(seen) == len(set(seen))  # nothing stands in two pairs
        modules[split] = {home[text] for text in seen}
        for first, second, label in zip(
            rows["text"], rows["text_pair"], rows["label"], strict=True
        ):
            assert home[first][0] == home[second][0]
            assert (home[first] == home[second]) == bool(label)
            assert not label or place[second] - place[first] in (1, 2)
    assert not modules["train"] & modules["validation"]
    counts = Counter(splits["train"]["label"])
    assert sum(counts.values()) >= 56 and counts[0] == counts[1]


# --- real files, where they are


def test_real_mrpc(shared: Path, tmp_path: Path) -> None:
    spec = DataSpec(source="glue_mrpc", path=str(shared / "data" / "glue" / "mrpc"))
    manifest = prepare(spec, tmp_path / "out")
    splits, _, _ = load_classification(tmp_path / "out")
    # sizes and share of the larger class as published for GLUE
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 3668, "validation": 408}
    assert sum(splits["train"]["label"]) / 3668 == pytest.approx(0.674, abs=1e-3)
    assert manifest["majority_accuracy"] == pytest.approx(0.684, abs=1e-3)


@pytest.mark.parametrize(
    ("source", "path", "rows"),
    [
        ("glue_wnli", "wnli", {"train": 635, "validation": 71}),
        ("stsb_subset", "stsb_subset", {"train": 3999, "validation": 875}),
        ("qnli_dev_split", "qnli", {"train": 5189, "validation": 274}),
        ("standin_cola_blimp", "standin_cola_blimp", {"train": 13400, "validation": 2680}),
        ("standin_sst2_uci", "standin_sst2_uci", {"train": 2396, "validation": 600}),
        ("standin_rte_sick", "standin_rte_sick", {"train": 4500, "validation": 500}),
        ("standin_mnli_snli", "standin_mnli_snli", {"train": 9842, "validation": 9824}),
    ],
)
def test_real_glue_files(
    shared: Path, tmp_path: Path, local: Path, source: str, path: str, rows: dict[str, int]
) -> None:
    (local / source).symlink_to(shared / "data" / "glue" / path)
    manifest = prepare(DataSpec(source=source), tmp_path / "out")
    declared = load_sources()[source].train_rows
    assert declared in (None, manifest["splits"]["train"]["rows"])
    assert {name: part["rows"] for name, part in manifest["splits"].items()} == rows
