"""Instructions: each format under our three names, damage named with file and row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.data import load_instructions
from experiments.data.functions import described, first_sentence
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.spec import DataSpec

from .conftest import sentences, write_rows

ALPACA = {"instruction": "Add.", "input": "1, 2", "output": "3"}
FORMATS = {
    "alpaca": ALPACA,
    "alpaca_gpt4": ALPACA,
    "dolly": {"instruction": "Add.", "context": "1, 2", "response": "3", "category": "open_qa"},
    "self_instruct": ALPACA,
    "self_instruct_tasks": {
        "id": "seed_task_0",
        "instruction": "Add.",
        "instances": [{"input": "1, 2", "output": "3"}],
    },
}


def rows_of(folder: Path, part: str = "train") -> list[dict[str, Any]]:
    return list(load_instructions(folder)[0][part])


@pytest.mark.parametrize("source", FORMATS)
def test_every_format_comes_out_the_same(source: str, tmp_path: Path) -> None:
    rows = [{**FORMATS[source], "instruction": text} for text in sentences(1, 20)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    spec = DataSpec(source=source, path=str(file), validation_documents=4)
    manifest = prepare(spec, tmp_path / "out")
    train, validation = rows_of(tmp_path / "out"), rows_of(tmp_path / "out", "validation")
    assert {tuple(row) for row in train} == {("instruction", "input", "output")}
    assert {(row["input"], row["output"]) for row in train + validation} == {("1, 2", "3")}
    assert {r["instruction"] for r in train + validation} == set(sentences(1, 20))
    assert (len(train), len(validation)) == (16, 4)
    assert manifest["unanswered"] == {"train": 0}


def test_gsm8k_keeps_its_official_split(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    for name, count in (("train", 5), ("test", 3)):
        rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(count)]
        write_rows(tmp_path / "main" / f"{name}-00000-of-00001.jsonl", rows)
    spec = DataSpec(source="gsm8k", path=str(tmp_path), max_documents=4)
    prepare(spec, tmp_path / "out")
    first = {"instruction": "What is 0 + 1?", "input": "", "output": "#### 1"}
    assert rows_of(tmp_path / "out")[0] == rows_of(tmp_path / "out", "validation")[0] == first
    assert len(rows_of(tmp_path / "out")) == 4
    assert len(rows_of(tmp_path / "out", "validation")) == 3


def test_instances_become_rows_and_stay_together_only_with_their_prompt(tmp_path: Path) -> None:
    instances = [{"input": f"{n}, 2", "output": str(n + 2)} for n in range(3)]
    rows = [{"instruction": text, "instances": instances} for text in sentences(1, 6)]
    rows.append({"instruction": "Sing.", "instances": [{"input": "", "output": "La."}] * 2})
    file = write_rows(tmp_path / "rows.jsonl", rows)
    spec = DataSpec(source="self_instruct_tasks", path=str(file), validation_documents=1)
    prepare(spec, tmp_path / "out")
    made = rows_of(tmp_path / "out") + rows_of(tmp_path / "out", "validation")
    assert len(made) == 6 * 3 + 1  # the row that stands there twice is there once


def test_rows_of_one_prompt_are_on_one_side(tmp_path: Path) -> None:
    rows = [{**ALPACA, "input": str(n // 4), "output": f"answer {n}"} for n in range(80)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    prepare(DataSpec(source="alpaca", path=str(file), validation_documents=5), tmp_path / "out")
    sides = [{r["input"] for r in rows_of(tmp_path / "out", p)} for p in ("train", "validation")]
    assert (len(sides[0]), len(sides[1]), sides[0] & sides[1]) == (15, 5, set())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response": ""}, "the field 'response' is empty: correct the row, or set 'leave_out"),
        ({"response": None}, "the field 'response' is missing"),
        ({"instruction": " \n"}, "the field 'instruction' is empty"),
    ],
)
def test_a_bad_row_is_named_with_its_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    good = FORMATS["dolly"]
    file = write_rows(tmp_path / "rows.jsonl", [good, {**good, **change}, good])
    with pytest.raises(UserError, match=f"'dolly', .*rows.jsonl, row 2: {message}"):
        prepare(DataSpec(source="dolly", path=str(file)), tmp_path / "out")


def test_a_missing_field_and_a_broken_line_are_named(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"instruction": "Add.", "output": "3"}])
    with pytest.raises(UserError, match=r"rows.jsonl: no field 'input'; present: instruction"):
        prepare(DataSpec(source="alpaca", path=str(file)), tmp_path / "out")
    file.write_text(json.dumps(ALPACA) + "\n" + '{"instruction": "Ad')
    with pytest.raises(UserError, match=r"rows.jsonl: broken after row 0 \(.*\); copy"):
        prepare(DataSpec(source="alpaca", path=str(file)), tmp_path / "out")


def test_a_task_without_instances_is_named(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"instruction": "Add.", "instances": []}])
    with pytest.raises(UserError, match="row 1: the field 'instances' holds no instances"):
        prepare(DataSpec(source="self_instruct_tasks", path=str(file)), tmp_path / "out")


def test_an_empty_part_is_refused(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [ALPACA])
    with pytest.raises(UserError, match="'alpaca': the train part has no rows"):
        prepare(DataSpec(source="alpaca", path=str(file)), tmp_path / "out")


def test_rows_that_alpaca_left_unanswered_are_counted(tmp_path: Path) -> None:
    rows = [{**ALPACA, "instruction": text} for text in sentences(1, 9)]
    file = write_rows(tmp_path / "rows.jsonl", [*rows, {**ALPACA, "output": " "}])
    spec = DataSpec(source="alpaca", path=str(file), validation_documents=2)
    manifest = prepare(spec, tmp_path / "out")
    assert manifest["unanswered"] == {"train": 1}
    assert {name: part["rows"] for name, part in manifest["splits"].items()} == {
        "train": 7, "validation": 2,
    }  # fmt: skip


# --- instructions from documented functions

MODULE = '''
"""A module."""

def add(a: int, /, b=1, *rest, c, **more) -> int:
    """Add the :class:`numbers` up, e.g. 1 and 2. The rest is optional.

    More text.
    """

def _private():
    """Do what nobody needs to know."""

def short():
    """Return it."""

class Tree:
    """A tree of many leaves."""

    def grow(self, leaves):
        """Let the tree grow by some leaves.

        Parameters
        """

    @classmethod
    def table(cls):
        """| a | b |"""
'''


def test_functions_are_described(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(MODULE)
    assert described(file) == [
        ("add(a, b, *rest, c, **more)", "Add the numbers up, e.g. 1 and 2."),
        ("Tree.grow(leaves)", "Let the tree grow by some leaves."),
    ]
    file.write_text("def broken(:")
    assert described(file) == []
    assert first_sentence("no capital at the beginning of it.") is None


def test_docstring_instructions_are_split_by_module(
    tmp_path: Path, install: Callable[..., None], add_source: Callable[..., None]
) -> None:
    def module(seed: int) -> str:
        texts = [*sentences(seed, 4), "All modules say this sentence of theirs."]
        return "\n".join(f'def f{seed}_{n}(x):\n    """{t}"""\n' for n, t in enumerate(texts))

    install("alpha", {f"alpha/m{seed}.py": module(seed) for seed in range(8)})
    add_source("described", like="docstring_instructions", distributions=["alpha"])
    prepare(DataSpec(source="described", validation_documents=2), tmp_path / "out")
    homes = [
        {r["instruction"].split("f")[2].split("_")[0] for r in rows_of(tmp_path / "out", part)}
        for part in ("train", "validation")
    ]
    assert (len(homes[0]), len(homes[1]), homes[0] & homes[1]) == (6, 2, set())
    outputs = [
        r["output"] for part in ("train", "validation") for r in rows_of(tmp_path / "out", part)
    ]
    assert outputs.count("All modules say this sentence of theirs.") == 1
    assert len(outputs) == 8 * 4 + 1


# --- real files, where they are


@pytest.mark.parametrize(
    ("source", "path", "rows"),
    [
        # 999 rows, 14 of them twice
        ("alpaca_gpt4", "alpaca_gpt4_en_demo.parquet", {"train": 935, "validation": 50}),
        ("self_instruct", "self_instruct_user_oriented.parquet", {"train": 239, "validation": 13}),
        ("gsm8k", "gsm8k", {"train": 7473, "validation": 1319}),
    ],
)
def test_real_instruction_files(
    shared: Path, tmp_path: Path, source: str, path: str, rows: dict[str, int]
) -> None:
    spec = DataSpec(source=source, path=str(shared / "data" / "instruct" / path))
    manifest = prepare(spec, tmp_path / "out")
    assert {name: part["rows"] for name, part in manifest["splits"].items()} == rows
    assert all(row["output"] for row in rows_of(tmp_path / "out", "validation"))
