"""Strict YAML, atomic writes, canonical hashes."""

import hashlib
from pathlib import Path

import pytest

from experiments import files
from experiments.errors import UserError, nearest


def test_yaml_reads_exponents_without_a_dot_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1e-3\nb: 5E+2\nc: 0x10\nd: e3\ne: 1.5e-7\n")
    assert files.load_yaml(path) == {"a": 0.001, "b": 500.0, "c": 16, "d": "e3", "e": 1.5e-7}


def test_yaml_merges_but_refuses_a_key_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("base: &b {a: 1, c: 3}\nmerged: {<<: *b, a: 2}\n")
    assert files.load_yaml(path)["merged"] == {"a": 2, "c": 3}
    path.write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(UserError, match=r"x\.yaml: .*'a' is given twice \(line 3\)"):
        files.load_yaml(path)


@pytest.mark.parametrize(
    ("text", "message"), [("- 1\n", "expected a mapping"), ("a: [1\n", "not valid YAML")]
)
def test_yaml_of_another_form_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"x\.yaml: {message}"):
        files.load_yaml(path)
    with pytest.raises(UserError, match=r"y\.yaml: no such file"):
        files.load_yaml(tmp_path / "y.yaml")


def test_hash_is_sha256_of_sorted_json() -> None:
    expected = hashlib.sha256(b'{"a":[1,0.001],"b":null}').hexdigest()
    assert files.content_hash({"b": None, "a": [1, 1e-3]}) == expected


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.txt"
    files.write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unchanged_content_keeps_the_time_stamp(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    assert files.write_if_changed(path, "one")
    before = path.stat().st_mtime_ns
    assert not files.write_if_changed(path, "one")
    assert path.stat().st_mtime_ns == before
    assert files.write_if_changed(path, "two")


def test_json_has_no_nan() -> None:
    content = {"a": [float("nan"), 1.0], "b": {"c": float("inf")}}
    assert files.plain_json(content) == {"a": [None, 1.0], "b": {"c": None}}


def test_nearest_name() -> None:
    assert nearest("galor", ["galore", "gwt"]) == "; did you mean 'galore'?"
    assert nearest("zzz", ["b", "a"]) == "; known: a, b"
