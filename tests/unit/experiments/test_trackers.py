"""Curves in TensorBoard while a run trains, and where its time goes."""

from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from experiments import models, pretrain, trackers, training
from experiments.clock import Clock
from experiments.errors import UserError

from .conftest import make_run, run_content


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by tag, as TensorBoard shows them: purged steps are dropped."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == 1:  # START: a new session, from this step on
                for tag, points in found.items():
                    found[tag] = [point for point in points if point[0] < event.step]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_has_the_curves_of_a_resumed_run_once(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content(), name="adamw", lr=1e-2)
    work = tmp_path / "work" / "r"
    for done in (0, 8):  # a whole run; then one that goes on from its step 8
        task = pretrain.make_task(run, prepared)
        optimizer, _ = training.make_optimizer(run, task.model)
        checkpoint = (work / "checkpoints" / f"{done:08}", done) if done else None
        training.train(run, task, optimizer, work, checkpoint, trackers.TENSORBOARD)
    found = scalars(tmp_path / "tensorboard" / run.run_id)
    assert [step for step, _ in found["train/loss"]] == [2, 4, 6, 8, 10, 12]
    assert [step for step, _ in found["eval/loss"]] == [6, 12]
    assert found["train/loss"][-1][1] < found["train/loss"][0][1]


def test_a_run_ends_with_the_same_bits_whoever_watches(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content(), name="adamw", lr=1e-2)
    hashes = set()
    for track in (trackers.NONE, trackers.TENSORBOARD):
        task = pretrain.make_task(run, prepared)
        optimizer, _ = training.make_optimizer(run, task.model)
        training.train(run, task, optimizer, tmp_path / track / "work" / "r", None, track)
        hashes.add(models.weights_sha256(task.model))
    assert len(hashes) == 1
    assert not (tmp_path / "none" / "tensorboard").exists()


def test_a_wrong_tracker_is_named_before_anything_starts() -> None:
    with pytest.raises(UserError, match="--track: unknown tracker 'tensorbord'.*tensorboard"):
        trackers.check("tensorbord")
    with pytest.raises(UserError, match="--track wandb: pip install wandb"):
        trackers.check("wandb")
    trackers.check("none")


def test_clock_counts_what_runs_and_not_what_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("experiments.clock.time.perf_counter", lambda: now[0])
    clock = Clock()
    assert clock.shares() is None

    def passes(seconds: float) -> None:
        now[0] += seconds

    clock.start("update")
    passes(2)
    clock.start("optimizer")
    passes(6)
    clock.stop("optimizer")
    assert clock.stop("update") == 8
    clock.start("outside")
    passes(1)
    with clock.paused("outside"):  # an evaluation
        passes(100)
    passes(1)
    clock.stop("outside")
    assert clock.shares() == {"optimizer": 0.6, "outside": 0.2}
    assert clock.stop("outside") == 0


def test_a_run_says_where_its_time_went(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content(), name="adamw", lr=1e-2)
    task = pretrain.make_task(run, prepared)
    optimizer, _ = training.make_optimizer(run, task.model)
    shares = training.train(run, task, optimizer, tmp_path, None).time_shares
    assert shares is not None and set(shares) == {"optimizer", "outside"}
    assert all(0 < share < 1 for share in shares.values())
