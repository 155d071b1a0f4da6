"""The folders of a run: metrics that survive a kill, the lock, provenance."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import rundir
from experiments.errors import UserError

from .conftest import make_run, run_content


def test_metrics_are_cut_back_to_the_checkpoint_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    metrics = rundir.MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.truncate(5) == []
    for step in (2, 4, 4, 6):
        metrics.append({"step": step, "loss": 0.1 + step})
    with metrics.path.open("a") as file:
        file.write('{"step": 8, "lo')  # killed here
    kept = metrics.truncate(4)
    assert [row["step"] for row in kept] == [2, 4, 4]
    metrics.append({"step": 6, "loss": float("nan")})
    assert [row["step"] for row in metrics.rows()] == [2, 4, 4, 6]
    assert metrics.rows()[-1]["loss"] is None
    assert metrics.rows()[0]["loss"] == 0.1 + 2  # every bit


def test_a_second_process_waits_for_the_lock(tmp_path: Path, repo: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from experiments import rundir\n"
        "with rundir.locked(Path(sys.argv[1])): Path(sys.argv[1], 'entered').touch()"
    )
    with rundir.locked(tmp_path):
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True, cwd=repo
        )
        assert second.stderr is not None
        assert "another process trains this run" in second.stderr.readline()
        assert not (tmp_path / "entered").exists()
    assert second.wait(60) == 0
    assert (tmp_path / "entered").exists()


def test_outputs_are_written_whole_and_recognised(tmp_path: Path) -> None:
    run = make_run(run_content())
    out = tmp_path / "run"
    metrics = rundir.MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1})
    assert not rundir.finished(out, run)
    rundir.write_outputs(out, run, metrics, {"nan": float("nan")}, {"commit": None})
    assert sorted(p.name for p in out.iterdir()) == sorted(rundir.FILES)
    assert json.loads((out / "summary.json").read_text()) == {"nan": None}
    assert rundir.finished(out, run)
    with pytest.raises(UserError, match="holds the run test-tiny-adamw"):
        rundir.finished(out, make_run(run_content(steps=14)))
    (out / "summary.json").unlink()
    assert not rundir.finished(out, run)


def test_dirty_looks_at_code_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    monkeypatch.setattr(rundir, "REPOSITORY", tmp_path)
    assert rundir.commit() == {"commit": None, "dirty": None}
    git("init", "-q")
    (tmp_path / "code.py").write_text("1")
    (tmp_path / "paper_figures").mkdir()
    (tmp_path / "paper_figures" / "x.svg").write_text("1")
    git("add", "-A")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "m")
    (tmp_path / "paper_figures" / "x.svg").write_text("2")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "r").write_text("1")
    assert rundir.commit()["dirty"] is False
    assert len(rundir.commit()["commit"]) == 40
    (tmp_path / "code.py").write_text("2")
    assert rundir.commit()["dirty"] is True


def test_sessions_remember_each_resume(tmp_path: Path) -> None:
    rundir.begin_session(tmp_path, 0)
    sessions = rundir.begin_session(tmp_path, 40)
    assert [session["from_step"] for session in sessions] == [0, 40]
    assert [s["from_step"] for s in rundir.begin_session(tmp_path, 0)] == [0]  # a fresh start


def test_too_little_space_is_said_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not enough space .* need about 1,000,000,000,000 MB"):
        rundir.require_space(tmp_path, 10**18)
    rundir.require_space(tmp_path, 1)


def test_peak_rss_counts_what_was_touched() -> None:
    code = (
        "from experiments import rundir; before = rundir.peak_rss_bytes(); "
        "block = bytearray(200_000_000); block[::4096] = b'x' * len(block[::4096]); "
        "print(rundir.peak_rss_bytes() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=rundir.REPOSITORY,
    )  # fmt: skip
    assert 150e6 < int(done.stdout) < 260e6
