"""The commands, killed as a machine would kill them (slow: each start loads torch)."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import spec
from experiments.data.prepare import prepare
from experiments.spec import RunSpec

from . import instructed
from .conftest import ENCODER_WORDS, make_run, run_content

pytestmark = pytest.mark.slow


def command(
    run_file: Path, root: Path, data: Path, repo: Path, task: str = "pretrain"
) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", f"experiments.{task}", str(run_file), str(root / "runs" / "r")]
    return subprocess.Popen(
        [*call, "--data", str(data), "--work", str(root / "work")],
        stderr=subprocess.PIPE, text=True, cwd=repo,
    )  # fmt: skip


def outcome(root: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = root / "runs" / "r"
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    wall_clock = {"seconds", "tokens_per_second", "peak_rss_bytes", "time_shares"}
    return (
        {k: v for k, v in summary.items() if k not in wall_clock},
        [{k: v for k, v in row.items() if k not in wall_clock} for row in rows],
    )


KILLS = 20


@pytest.mark.parametrize(
    ("method", "lr"), [("gwt", 1e-2), ("adama", 1e-2), ("adalomo", 1e-2)]
)  # at the step, accumulated, in backward
def test_kill_9_twenty_times_and_go_on(
    method: str, lr: float, prepared: Path, tmp_path: Path, repo: Path
) -> None:
    """Killed at random moments of 60 steps, a run ends with the bits of an undisturbed one."""
    content = run_content(steps=60, checkpoint_every=2, log_every=1, eval_every=20)
    args = {"level": 1} if method == "gwt" else {}
    run = make_run(content, name=method, lr=lr, args=args)
    assert_kills_change_nothing(run, prepared, tmp_path, repo, KILLS, rows_a_start=3)


def assert_kills_change_nothing(
    run: RunSpec, data: Path, tmp_path: Path, repo: Path, kills: int, rows_a_start: int
) -> None:
    """Every start gets some rows of metrics further than the last, and to a moment inside one."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(spec.to_yaml(run))
    undisturbed = command(run_file, tmp_path / "undisturbed", data, repo, run.task)
    assert undisturbed.wait() == 0

    killed = tmp_path / "killed"
    metrics = killed / "work" / "metrics.jsonl"
    draw = random.Random(0)
    for kill in range(kills):
        rows = 1 + rows_a_start * kill + draw.randrange(rows_a_start)
        process = command(run_file, killed, data, repo, run.task)
        while not metrics.is_file() or len(metrics.read_text().splitlines()) < rows:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (killed / "runs" / "r" / "summary.json").exists()
    assert command(run_file, killed, data, repo, run.task).wait() == 0
    assert outcome(killed) == outcome(tmp_path / "undisturbed")  # weights_sha256 among it
    assert not (killed / "work" / "checkpoints").exists()

    again = command(run_file, killed, data, repo, run.task)
    assert "already finished" in again.communicate()[1]
    assert again.returncode == 0


TUNED_KILLS = 5


def test_fine_tuning_killed_and_gone_on(encoder: Path, tmp_path: Path, repo: Path) -> None:
    """A BERT with dropout and a fresh head, GWT at the step, the best evaluation counting."""
    draw = random.Random(0)
    (tmp_path / "rows").mkdir()
    for part, count in {"train": 120, "validation": 40}.items():
        labels = [draw.randrange(2) for _ in range(count)]
        rows = (
            {"sentence": " ".join(draw.choices(ENCODER_WORDS[y::2], k=8)), "label": y}
            for y in labels
        )
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "rows" / f"{part}.jsonl").write_text(lines)
    content = {
        "task": "finetune", "study": "test", "suite": "test",
        "model": {"name": "tiny_bert", "path": str(encoder)},
        "method": {"name": "gwt", "lr": 1e-2, "args": {"level": 1}},
        "data": {"source": "glue_cola", "path": str(tmp_path / "rows")},
        "score": {"metric": "matthews", "select": "best"},
        "train": {
            "steps": 60, "batch_size": 12, "micro_batches": 2, "sequence_length": 16,
            "schedule": {"name": "linear", "warmup_fraction": 0.1}, "eval_every": 15,
            "log_every": 1, "checkpoint_every": 2,
        },
    }  # fmt: skip
    run = spec.parse(RunSpec, content, "test")
    prepare(run.data, tmp_path / "data")
    assert_kills_change_nothing(
        run, tmp_path / "data", tmp_path, repo, TUNED_KILLS, rows_a_start=11
    )


def test_instruction_tuning_killed_and_gone_on(tmp_path: Path, repo: Path) -> None:
    """A LLaMA with packed rows, AdaLomo in backward; what it says in the end is the same, too."""
    folder = instructed.save(tmp_path / "llama")
    rows = instructed.write_rows(tmp_path / "rows.jsonl", instructed.instructions(120))
    content = instructed.run_content(
        folder, rows, method={"name": "adalomo", "lr": 0.1}, instruct={"rows": "packed"},
        steps=60, batch_size=4, eval_every=15, log_every=1, checkpoint_every=2,
    )  # fmt: skip
    run = spec.parse(RunSpec, content, "test")
    prepare(run.data, tmp_path / "data")
    assert_kills_change_nothing(
        run, tmp_path / "data", tmp_path, repo, TUNED_KILLS, rows_a_start=11
    )
    said = [tmp_path / n / "runs/r/generations.jsonl" for n in ("killed", "undisturbed")]
    assert said[0].read_bytes() == said[1].read_bytes()


def test_user_errors_are_one_line_and_status_2(prepared: Path, tmp_path: Path, repo: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text("task: pretrain\nstudi: x\n")
    process = command(run_file, tmp_path, prepared, repo)
    error = process.communicate()[1]
    assert process.returncode == 2
    assert "run.yaml: unknown key 'studi'; did you mean 'study'?" in error
    assert "Traceback" not in error
