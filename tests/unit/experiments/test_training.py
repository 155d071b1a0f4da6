"""Training on a real, tiny corpus: exact repetition, exact resumption, honest records."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

import memopt
from experiments import checkpoints, models, pretrain, rundir, session, training
from experiments.errors import UserError
from experiments.order import Order
from experiments.spec import RunSpec

from .conftest import make_run, run_content

METHODS = {
    "adamw": {"lr": 1e-2, "args": {}},
    "gwt": {"lr": 1e-2, "args": {"level": 1}},
    "galore": {"lr": 1e-2, "args": {"rank": 4, "update_interval": 3}},
    "adama": {"lr": 1e-2, "args": {}},
    "adalomo": {"lr": 1e-2, "args": {}},
    "lomo": {"lr": 0.3, "args": {}},
    "lora": {"lr": 1e-2, "args": {"rank": 4, "alpha": 8}},
    # merges after updates 3, 6, 9 and 12: one between the checkpoint at 8 and the end
    "relora": {"lr": 1e-2, "args": {"rank": 4, "update_interval": 3, "restart_warmup": 2}},
}


@pytest.fixture(autouse=True)
def default_algorithms() -> Iterator[None]:
    """Gives back what `prepare_process` sets for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def execute(run: RunSpec, root: Path, data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs to the end; returns the summary and the metrics without wall-clock times."""
    with rundir.locked(root / "work"):
        session.execute(run, root / "run", data, root / "work", pretrain.make_task)
    summary = json.loads((root / "run" / "summary.json").read_text())
    rows = [json.loads(line) for line in (root / "run" / "metrics.jsonl").open()]
    return summary, [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the next run die when it has done ``step`` updates."""
    original = training.Recorder.on_step_end

    def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        original(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(training.Recorder, "on_step_end", dying)


@pytest.mark.parametrize("method", METHODS)
def test_resumed_equals_undisturbed_and_repeated_equals_first(
    method: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(run_content(), name=method, **METHODS[method])
    first = execute(run, tmp_path / "first", prepared)
    assert first[0]["verdict"] == "finished"
    assert first[0]["final"]["validation_loss"] < first[1][0]["loss"]
    with monkeypatch.context() as patch:
        interrupt_at(11, patch)  # checkpoints lie at 4 and 8, rows of step 10 are written
        with pytest.raises(KeyboardInterrupt):
            execute(run, tmp_path / "second", prepared)
    second = execute(run, tmp_path / "second", prepared)
    assert second[1] == first[1]
    assert second[0]["final"] == first[0]["final"]
    assert second[0]["weights_sha256"] == first[0]["weights_sha256"]
    provenance = json.loads((tmp_path / "second" / "run" / "provenance.json").read_text())
    assert [s["from_step"] for s in provenance["sessions"]] == [0, 8]


def test_a_truncated_newest_checkpoint_costs_a_warning_only(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(run_content())
    first = execute(run, tmp_path / "first", prepared)
    with monkeypatch.context() as patch:
        interrupt_at(11, patch)
        with pytest.raises(KeyboardInterrupt):
            execute(run, tmp_path / "second", prepared)
    optimizer = tmp_path / "second" / "work" / "checkpoints" / "00000008" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="00000008 is damaged"):
        second = execute(run, tmp_path / "second", prepared)
    assert second[1] == first[1]
    assert second[0]["weights_sha256"] == first[0]["weights_sha256"]


def test_a_kill_after_the_last_step_trains_nothing_again(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(run_content())
    first = execute(run, tmp_path, prepared)
    checkpoint = checkpoints.newest(tmp_path / "work" / "checkpoints")
    assert checkpoint is not None and checkpoint[1] == run.train.steps
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(training.RunTrainer, "training_step", None)
    again = execute(run, tmp_path, prepared)
    assert again[1] == first[1]
    assert again[0]["final"] == first[0]["final"]
    assert again[0]["weights_sha256"] == first[0]["weights_sha256"]


def test_checkpoints_hold_plain_values_only(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content(), name="gwt", lr=1e-2, args={"level": 1})
    execute(run, tmp_path, prepared)
    found = checkpoints.newest(tmp_path / "work" / "checkpoints")
    assert found is not None
    state = torch.load(found[0] / "optimizer.pt", weights_only=True)
    assert state["state"]


def test_weights_do_not_depend_on_the_data_seed(prepared: Path) -> None:
    def task(**seeds: int) -> training.Task:
        return pretrain.make_task(make_run(run_content() | {"seeds": seeds}), prepared)

    hashes = [
        models.weights_sha256(task(weights=w, data=d).model) for w, d in ((0, 0), (0, 1), (1, 0))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("method", "key"), [("apollo", "projection_seed"), ("lora", "adapter_seed")]
)
def test_random_projections_follow_the_runs_seed(prepared: Path, method: str, key: str) -> None:
    """Seeds are repetitions only if everything that is drawn is drawn anew."""
    for seed in (0, 3):
        content = {**run_content(), "seeds": {"weights": seed, "data": 0}}
        run = make_run(content, name=method, lr=1e-2, args={"rank": 4})
        task = pretrain.make_task(run, prepared)
        optimizer, _ = training.make_optimizer(run, task.model)
        assert optimizer.defaults[key] == seed
    given = make_run(run_content(), name=method, lr=1e-2, args={"rank": 4, key: 9})
    optimizer, _ = training.make_optimizer(given, pretrain.make_task(given, prepared).model)
    assert optimizer.defaults[key] == 9


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_order_shows_every_row_once_an_epoch(rows: int) -> None:
    order = Order(list(range(rows)), length=3 * rows + 2, seed=5)
    seen = [order[i] for i in range(len(order))]
    epochs = [seen[i * rows : (i + 1) * rows] for i in range(3)]
    assert all(Counter(epoch) == Counter(range(rows)) for epoch in epochs)
    if rows == 64:
        assert epochs[0] != epochs[1] != epochs[2]
        other = Order(list(range(rows)), length=rows, seed=6)
        assert [other[i] for i in range(rows)] != epochs[0]
    # any position, asked for out of order, as after a resume
    fresh = Order(list(range(rows)), length=3 * rows + 2, seed=5)
    for position in (2 * rows, 0, 3 * rows + 1):
        assert fresh[position] == seen[position]


@pytest.mark.parametrize("method", ["adamw", "lomo"])
def test_micro_batches_change_nothing_but_rounding(
    method: str, prepared: Path, tmp_path: Path
) -> None:
    rows = {}
    for parts in (1, 4):
        run = make_run(run_content(micro_batches=parts), name=method, **METHODS[method])
        rows[parts] = execute(run, tmp_path / str(parts), prepared)[1]
    for one, four in zip(rows[1], rows[4], strict=True):
        # float32 sums in another order; twelve steps let Adam amplify it a little
        assert four["loss"] == pytest.approx(one["loss"], rel=2e-4)
        if one["grad_norm"]:
            assert four["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def test_logged_rate_is_the_closed_form_and_the_applied_one(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[float] = []
    step_parameter = memopt.AdaLomo.step_parameter

    def spy(self: Any, param: Any, grad: Any, group: dict[str, Any]) -> None:
        applied.append(float(group["lr"]))
        step_parameter(self, param, grad, group)

    monkeypatch.setattr(memopt.AdaLomo, "step_parameter", spy)
    run = make_run(run_content(log_every=1), name="adalomo", lr=7e-3)
    _, rows = execute(run, tmp_path, prepared)
    logged = [row["lr"] for row in rows if row["split"] == "train"]
    # linear warm-up over 3 of 12 updates from 0, then cosine to a tenth of the peak
    expected = [
        7e-3 * (t / 3 if t < 3 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (t - 3) / 9)))
        for t in range(12)
    ]
    assert logged == pytest.approx(expected, rel=1e-12)
    assert len(applied) == 12 * 21  # parameters: seven matrices and two norms a layer, three more
    assert [set(applied[i * 21 : (i + 1) * 21]) for i in range(12)] == [{lr} for lr in logged]


def test_gradient_norm_is_reported_where_gradients_are_gone(prepared: Path, tmp_path: Path) -> None:
    norms = {}
    for method in ("adamw", "lomo", "adama"):
        content = run_content(log_every=1, steps=1, checkpoint_every=1, micro_batches=1)
        run = make_run(content, name=method, **METHODS[method])
        norms[method] = execute(run, tmp_path / method, prepared)[1][0]["grad_norm"]
    assert norms["adamw"] > 0
    assert norms["lomo"] == pytest.approx(norms["adamw"], rel=1e-5)
    assert norms["adama"] == pytest.approx(norms["adamw"], rel=1e-5)


def test_norm_clipping_clips_or_is_refused_by_name(prepared: Path, tmp_path: Path) -> None:
    content = run_content(max_grad_norm=0.01)
    sgd = make_run(content, name="adamw", lr=1e-2)
    execute(sgd, tmp_path, prepared)
    for method, title in (("lomo", "LOMO"), ("adama", "AdamA")):
        run = make_run(content, name=method, lr=1e-2)
        model = pretrain.make_task(run, prepared).model
        with pytest.raises(UserError, match=f"max_grad_norm=0.01: {title} uses up each gradient"):
            training.make_optimizer(run, model)


def test_a_diverging_run_is_a_result(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content(), name="lomo", lr=1e6)
    summary, rows = execute(run, tmp_path, prepared)
    assert summary["diverged"] is True
    assert summary["verdict"].startswith("diverged at step ")
    assert summary["steps"] < run.train.steps
    assert "validation_loss" not in summary["final"]
    assert rundir.finished(tmp_path / "run", run)


def test_a_full_disk_is_said_and_the_run_goes_on_later(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(run_content())
    first = execute(run, tmp_path / "first", prepared)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomic", full)  # the seal of the first checkpoint
        with pytest.raises(UserError, match="writing the run failed .* No space left on device"):
            execute(run, tmp_path / "second", prepared)
    assert execute(run, tmp_path / "second", prepared)[1] == first[1]


def test_wrong_arguments_are_refused_in_the_methods_words(prepared: Path) -> None:
    model = pretrain.make_task(make_run(run_content()), prepared).model
    for method, args, message in (
        ("gwt", {"levl": 2}, "method gwt: unknown argument of gwt 'levl'. Did you mean 'level'"),
        ("gwtt", {}, "method gwtt: unknown method 'gwtt'"),
        ("galore", {"rank": 0}, "method galore: rank must be an integer of 1 or more"),
    ):
        with pytest.raises(UserError, match=message):
            training.make_optimizer(make_run(run_content(), name=method, lr=1e-2, args=args), model)


def test_summary_says_what_ran(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content(), name="gwt", lr=1e-2, args={"level": 1})
    summary, rows = execute(run, tmp_path, prepared)
    assert summary["optimizer"]["class"] == "memopt.optimizers.gwt.GWT"
    assert summary["optimizer"]["treated_parameters"] == 2 * 7  # four attention, three MLP matrices
    assert summary["optimizer"]["treated_elements"] == 2 * (4 * 16 * 16 + 3 * 16 * 40)
    assert summary["state_bytes"]["measured"] == summary["state_bytes"]["predicted"] > 0
    assert summary["tokens"] == 12 * 8 * 16 == rows[-1]["tokens"]
    train_rows = json.loads((prepared / "manifest.json").read_text())["splits"]["train"]["rows"]
    assert summary["epochs"] == 12 * 8 / train_rows
    assert summary["parameters"] == summary["weights_bytes"] / 4
    assert summary["final"]["unigram_perplexity"] > 1


def test_bfloat16_rounds_weights_and_keeps_buffers(prepared: Path) -> None:
    models_of = {
        dtype: pretrain.make_task(make_run(run_content(dtype=dtype)), prepared).model
        for dtype in ("float32", "bfloat16")
    }
    exact = dict(models_of["float32"].named_parameters())
    for name, parameter in models_of["bfloat16"].named_parameters():
        assert parameter.dtype is torch.bfloat16
        torch.testing.assert_close(parameter, exact[name].to(torch.bfloat16), rtol=0, atol=0)
    for name, buffer in models_of["bfloat16"].named_buffers():
        assert buffer.dtype is torch.float32, name


@pytest.mark.parametrize(
    ("dtype", "held"), [("bfloat16", torch.bfloat16), ("bfloat16_autocast", torch.float32)]
)
def test_low_precision_trains(
    dtype: str, held: torch.dtype, prepared: Path, tmp_path: Path
) -> None:
    run = make_run(run_content(dtype=dtype), name="gwt", lr=1e-2, args={"level": 1})
    AcceleratorState._reset_state(reset_partial_state=True)  # one precision a process, otherwise
    try:
        summary, rows = execute(run, tmp_path, prepared)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert summary["final"]["validation_loss"] < rows[0]["loss"]
    assert summary["weights_bytes"] == summary["parameters"] * held.itemsize
    assert summary["state_bytes"]["measured"] == summary["state_bytes"]["predicted"]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"vocab_size": 200}, "has 200 vocabulary entries, but the tokens go up to 2"),
        ({"hiden_size": 16}, "unknown key 'shape.hiden_size'; did you mean 'hidden_size'"),
        ({"model_type": "lama"}, "unknown shape.model_type 'lama'"),
    ],
)
def test_impossible_models_are_refused(prepared: Path, shape: dict[str, Any], message: str) -> None:
    content = run_content()
    content["model"]["shape"] |= shape
    with pytest.raises(UserError, match=message):
        pretrain.make_task(make_run(content), prepared)
