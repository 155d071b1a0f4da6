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

from .conftest import make_run, run_content

pytestmark = pytest.mark.slow


def command(run_file: Path, root: Path, data: Path, repo: Path) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "experiments.pretrain", str(run_file), str(root / "runs" / "r")]
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
    run_file = tmp_path / "run.yaml"
    run_file.write_text(spec.to_yaml(run))
    undisturbed = command(run_file, tmp_path / "undisturbed", prepared, repo)
    assert undisturbed.wait() == 0

    killed = tmp_path / "killed"
    metrics = killed / "work" / "metrics.jsonl"
    draw = random.Random(0)
    for kill in range(KILLS):
        # every start gets further than the last: three steps or so, and a moment inside one
        rows = 1 + 3 * kill + draw.randrange(3)
        process = command(run_file, killed, prepared, repo)
        while not metrics.is_file() or len(metrics.read_text().splitlines()) < rows:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (killed / "runs" / "r" / "summary.json").exists()
    assert command(run_file, killed, prepared, repo).wait() == 0
    assert outcome(killed) == outcome(tmp_path / "undisturbed")  # weights_sha256 among it
    assert not (killed / "work" / "checkpoints").exists()

    again = command(run_file, killed, prepared, repo)
    assert "already finished" in again.communicate()[1]
    assert again.returncode == 0


def test_user_errors_are_one_line_and_status_2(prepared: Path, tmp_path: Path, repo: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text("task: pretrain\nstudi: x\n")
    process = command(run_file, tmp_path, prepared, repo)
    error = process.communicate()[1]
    assert process.returncode == 2
    assert "run.yaml: unknown key 'studi'; did you mean 'study'?" in error
    assert "Traceback" not in error
