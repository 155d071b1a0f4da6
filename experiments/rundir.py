"""A run's folders: live metrics and the lock in WORK, four files in OUT_DIR at the end."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments import spec as specs
from experiments.errors import UserError
from experiments.files import plain_json, write_atomic
from experiments.spec import RunSpec

REPOSITORY = Path(__file__).resolve().parents[1]
# What the pipeline itself writes, or draws: no reason to call the code modified.
NOT_CODE = ("results", "paper_figures", "data/prepared")
PACKAGES = ("memopt", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy")
FILES = ("run.yaml", "metrics.jsonl", "provenance.json", "summary.json")
PEAK_METHOD = (
    "VmHWM: largest resident set of the training process in its last session, interpreter and "
    "libraries included"
)


class MetricsFile:
    """``metrics.jsonl``: one JSON object a line, written as training goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a last line that a kill cut short is left out."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row; what is not a number becomes null."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain_json(row)) + "\n")

    def conclude(self, row: dict[str, Any]) -> None:
        """Writes a row about the finished training, unless a killed session has done so."""
        rows = self.rows()
        if all(other["split"] != row["split"] for other in rows):
            place = {key: rows[-1][key] for key in ("step", "tokens", "seconds")}
            self.append(place | {"loss": None, "lr": None, "grad_norm": None} | row)

    def truncate(self, step: int) -> list[dict[str, Any]]:
        """Drops what lies past ``step``, which the resumed run will write again."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        return kept

    def sync(self) -> None:
        """Puts the rows on the disk, as the checkpoint that follows will be."""
        with self.path.open("a") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def locked(work: Path) -> Iterator[None]:
    """Holds the run's folder alone; a second process waits and says so."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process trains this run; waiting for {work}/lock", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def finished(out_dir: Path, run: RunSpec) -> bool:
    """Whether the folder holds this run, complete.

    Raises:
        UserError: it holds another run.
    """
    if not all((out_dir / name).is_file() for name in FILES):
        return False
    try:
        there = specs.load(RunSpec, out_dir / "run.yaml")
    except UserError:
        return False
    if there.run_id != run.run_id:
        raise UserError(f"{out_dir} holds the run {there.run_id}, not {run.run_id}")
    return True


def write_outputs(
    out_dir: Path,
    run: RunSpec,
    metrics: MetricsFile,
    summary: dict[str, Any],
    provenance: dict[str, Any],
    more: Mapping[str, str] | None = None,
) -> None:
    """Writes the four files and ``more`` (text by name), each whole; the summary comes last."""
    out_dir.mkdir(parents=True, exist_ok=True)
    texts = {
        **(more or {}),
        "run.yaml": specs.to_yaml(run),
        "metrics.jsonl": metrics.path.read_text(encoding="utf-8"),
        "provenance.json": _pretty(provenance),
        "summary.json": _pretty(summary),
    }
    for name, text in texts.items():
        write_atomic(out_dir / name, text)


def begin_session(work: Path, step: int) -> list[dict[str, Any]]:
    """Notes that a process starts or resumes the run at ``step``; returns all sessions so far.

    A run that was resumed after the code changed is thereby recognisable.
    """
    path = work / "sessions.json"
    sessions = json.loads(path.read_text()) if step and path.is_file() else []
    sessions.append({"from_step": step, "started": now(), **commit()})
    write_atomic(path, _pretty(sessions))
    return sessions


def provenance(
    run: RunSpec, data_fingerprint: str, sessions: list[dict[str, Any]]
) -> dict[str, Any]:
    """What, by which code, from which data, on which machine."""
    import torch  # here, because waiting for a lock needs no torch

    from experiments import processes

    return {
        **commit(),
        "config_hash": run.config_hash,
        "data_fingerprint": data_fingerprint,
        "versions": versions(),
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "processes": processes.count(),
        "sessions": sessions,
        "started": sessions[0]["started"],
        "finished": now(),
    }


def commit() -> dict[str, Any]:
    """``commit`` of the checkout and whether its code is modified (``dirty``); null without git."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return {"commit": None, "dirty": None}
    exclude = [f":(exclude){path}" for path in NOT_CODE]
    return {"commit": head, "dirty": bool(_git("status", "--porcelain", "--", ".", *exclude))}


def versions() -> dict[str, str]:
    """Python and the packages that decide results."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system and accelerators."""
    import torch

    found: dict[str, Any] = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        found["accelerators"] = [torch.cuda.get_device_name(i) for i in range(count)]
    return found


def peak_rss_bytes() -> int | None:
    """Largest resident set of this process so far (see `PEAK_METHOD`); None where Linux is not.

    Not ``getrusage``: its maximum begins with that of the process that started this one.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def require_space(folder: Path, needed: int) -> None:
    """Raises a `UserError` if the disk has less than ``needed`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"not enough space in {folder}: checkpoints need about {needed / 1e6:,.0f} MB, "
            f"{free / 1e6:,.0f} MB are free"
        )


def clear(work: Path) -> None:
    """Takes away what only an unfinished run needs: checkpoints and staging."""
    for name in ("checkpoints", "staging"):
        shutil.rmtree(work / name, ignore_errors=True)


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _pretty(content: Any) -> str:
    return json.dumps(plain_json(content), indent=2) + "\n"
