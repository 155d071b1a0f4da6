"""Checkpoints are whole or not there."""

import warnings
from pathlib import Path

import pytest

from experiments import checkpoints


def staged(folder: Path, step: int) -> Path:
    stage = folder / "staging" / f"checkpoint-{step}"
    (stage / "inner").mkdir(parents=True)
    (stage / "weights.bin").write_bytes(bytes(range(256)) * step)
    (stage / "inner" / "state.json").write_text(str(step))
    return stage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints were published."""
    for step in (5, 10, 100):
        checkpoints.publish(staged(tmp_path, step), tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def test_newest_and_its_predecessor_are_kept(folder: Path) -> None:
    assert sorted(int(path.name) for path in folder.iterdir()) == [10, 100]
    assert checkpoints.newest(folder) == (folder / "00000100", 100)
    assert not list((folder.parent / "staging").iterdir())


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "unsealed", "extra"])
def test_a_damaged_newest_falls_back_with_a_warning(folder: Path, damage: str) -> None:
    file = folder / "00000100" / "weights.bin"
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[:-1])
    elif damage == "changed":
        file.write_bytes(b"\xff" + content[1:])
    elif damage == "missing":
        file.unlink()
    elif damage == "unsealed":
        (folder / "00000100" / checkpoints.SEAL).write_text('{"weights.bin": ')
    else:
        (folder / "00000100" / "more.bin").write_bytes(b"")
    with pytest.warns(UserWarning, match="00000100 is damaged"):
        assert checkpoints.newest(folder) == (folder / "00000010", 10)


def test_a_kill_while_writing_leaves_the_older_ones(folder: Path) -> None:
    staged(folder.parent, 200)  # written, never published
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoints.newest(folder) == (folder / "00000100", 100)


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path / "none") is None
