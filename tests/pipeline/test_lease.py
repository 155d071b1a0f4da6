"""Device leases: fake jobs on fake devices, real processes and locks."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# A job notes the devices it sees and when it started and ended.
JOB = """
import json, os, sys, time
start = time.monotonic()
time.sleep(float(sys.argv[1]))
row = [os.environ["CUDA_VISIBLE_DEVICES"], start, time.monotonic()]
open(sys.argv[2], "a").write(json.dumps(row) + "\\n")
"""


@pytest.fixture
def start(repo: Path, tmp_path: Path) -> Callable[..., subprocess.Popen]:
    """Starts a command under a lease of some of the devices 0 and 1."""

    def start(gpus: int, *command: str, devices: str = "0,1") -> subprocess.Popen:
        folder = {"MEMOPT_LEASES": str(tmp_path / "leases")}
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.lease", "--gpus", str(gpus), "--", *command],
            cwd=repo,
            env={**os.environ, **folder, "CUDA_VISIBLE_DEVICES": devices},
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def rows(log: Path) -> list:
    return [json.loads(line) for line in log.read_text().splitlines()]


def overlaps(jobs: list) -> list:
    """Pairs of jobs that had a device in common at the same time."""
    return [
        (a, b)
        for a, b in itertools.combinations(jobs, 2)
        if set(a[0].split(",")) & set(b[0].split(",")) and a[1] < b[2] and b[1] < a[2]
    ]


def test_four_jobs_share_two_devices_without_overlap(start: Callable, tmp_path: Path) -> None:
    log = tmp_path / "jobs"
    jobs = [start(1, sys.executable, "-c", JOB, "0.5", str(log)) for _ in range(4)]
    assert [job.wait(60) for job in jobs] == [0, 0, 0, 0]
    assert {devices for devices, *_ in rows(log)} <= {"0", "1"} and len(rows(log)) == 4
    assert overlaps(rows(log)) == []
    leases = rows(tmp_path / "leases/leases.jsonl")
    assert {lease["pid"] for lease in leases} == {job.pid for job in jobs}


def test_overlaps_are_seen() -> None:
    # the check above can fail
    assert overlaps([["0", 0.0, 2.0], ["0,1", 1.0, 3.0]]) != []
    assert overlaps([["0", 0.0, 2.0], ["1", 1.0, 3.0], ["0", 2.0, 3.0]]) == []


def test_large_and_small_requests_end(start: Callable, tmp_path: Path) -> None:
    log = tmp_path / "jobs"
    jobs = [start(n, sys.executable, "-c", JOB, "0.1", str(log)) for n in (1, 2, 1, 2)]
    assert [job.wait(60) for job in jobs] == [0, 0, 0, 0]
    assert sorted(len(devices) for devices, *_ in rows(log)) == [1, 1, 3, 3]
    assert overlaps(rows(log)) == []


def test_killed_command_gives_its_device_back(
    start: Callable, tmp_path: Path, wait_until: Callable
) -> None:
    leases = tmp_path / "leases/leases.jsonl"
    holder = start(1, "sleep", "600", devices="0")
    wait_until(leases.exists)
    log = tmp_path / "jobs"
    waiting = start(1, sys.executable, "-c", JOB, "0", str(log), devices="0")
    time.sleep(2)
    assert waiting.poll() is None and not log.exists()
    os.kill(holder.pid, signal.SIGKILL)
    assert waiting.wait(60) == 0
    holder.wait()


def test_more_than_there_is_gets_words(start: Callable) -> None:
    job = start(3, "true")
    assert job.wait(60) == 2
    assert "3 GPUs are asked for and 2 are visible (CUDA_VISIBLE_DEVICES: 0,1)" in job.stderr.read()


def test_no_gpu_means_none_is_seen_and_status_passes(start: Callable) -> None:
    assert start(0, "bash", "-c", 'exit "7$CUDA_VISIBLE_DEVICES"').wait(60) == 7
    unknown = start(0, "no-such-command")
    assert unknown.wait(60) == 2 and "cannot start 'no-such-command'" in unknown.stderr.read()
