"""Checkpoints that are whole or not there: staged, hashed, renamed, the previous one kept.

``Trainer`` writes into a staging folder. When it is done, every file is hashed into ``sealed.json``
and the folder is renamed to ``<step>``. A kill at any moment leaves older checkpoints untouched; a
file that was damaged later is found out by its hash, and the checkpoint before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

from experiments.files import write_atomic

SEAL = "sealed.json"
KEPT = 2


def publish(staged: Path, folder: Path, step: int) -> None:
    """Makes a staged checkpoint the newest one, and drops all but the newest `KEPT`.

    Args:
        staged: folder that ``Trainer`` has written completely.
        folder: where checkpoints live, each named by its step.
        step: updates done.
    """
    for path in staged.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    write_atomic(staged / SEAL, json.dumps(_hashes(staged)))
    final = folder / f"{step:08d}"
    shutil.rmtree(final, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    os.replace(staged, final)
    for old in _all(folder)[KEPT:]:
        shutil.rmtree(old)


def newest(folder: Path) -> tuple[Path, int] | None:
    """The newest whole checkpoint and its step; damaged ones are named in a warning."""
    for path in _all(folder):
        if is_whole(path):
            return path, int(path.name)
        warnings.warn(
            f"{path} is damaged (a file is missing, cut short or changed); using the one before",
            stacklevel=2,
        )
    return None


def is_whole(checkpoint: Path) -> bool:
    """Whether every file is there with the content it had when it was sealed."""
    try:
        sealed = json.loads((checkpoint / SEAL).read_text())
    except (OSError, ValueError):
        return False
    return bool(sealed == _hashes(checkpoint))


def _all(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdigit()), reverse=True)


def _hashes(folder: Path) -> dict[str, str]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != SEAL)
    return {p.relative_to(folder).as_posix(): _sha256(p) for p in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
