"""The training commands on two gloo processes against one process on the same batches."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from experiments import pretrain, processes, rundir, session, spec, training
from experiments.errors import UserError
from experiments.spec import RunSpec
from tests.unit.experiments.conftest import WORDS, make_run, run_content

from . import processes as spawned_processes

pytestmark = pytest.mark.distributed

METHODS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "zero1_adamw": {},
    "gwt": {"level": 1},
    "galore": {"rank": 4, "update_interval": 3},
    "coap": {"rank": 4, "update_interval": 3},
    "adama": {},
    "adalomo": {},
}
CASES = [(name, "ddp") for name in METHODS] + [
    (name, "fsdp2") for name in METHODS if name != "zero1_adamw"
]
LAUNCH = Path(__file__).resolve().parents[2] / "config" / "accelerate"
INTERRUPTED = ("gwt", "fsdp2"), ("zero1_adamw", "ddp")


def run_of(root: Path, name: str, parallel: str | None = None) -> RunSpec:
    """A run of eight updates in two micro-batches each, with clipping where there is some."""
    content = run_content(steps=8, eval_every=8)
    content["data"]["path"] = str(root / "documents.jsonl")
    if parallel:
        content["resources"] = {"parallel": parallel}
    if name == "gwt":
        content["train"]["max_grad_norm"] = 0.5
    return make_run(content, name=name, lr=1e-2, args=METHODS[name])


def execute(root: Path, folder: Path, run: RunSpec) -> None:
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    session.execute(run, folder / "run", root / "prepared", work, pretrain.make_task)


def interrupted(root: Path, folder: Path, run: RunSpec) -> None:
    step_end = training.Recorder.on_step_end
    training.Recorder.on_step_end = dying  # type: ignore[method-assign]
    with contextlib.suppress(KeyboardInterrupt):
        execute(root, folder, run)
    training.Recorder.on_step_end = step_end  # type: ignore[method-assign]


def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    """In place of `Recorder.on_step_end`: dies after the checkpoint of step 4."""
    if state.global_step == 6:
        raise KeyboardInterrupt


def work(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Every case; some again, interrupted after step 6 and resumed at 4."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ["MASTER_ADDR"] = "localhost"  # accelerate wants it; the group is there already
    root = folder.parent
    for name, parallel in CASES:
        execute(root, folder / f"{name}-{parallel}", run_of(root, name, parallel))
    for name, parallel in INTERRUPTED:
        run, again = run_of(root, name, parallel), folder / f"{name}-{parallel}-again"
        interrupted(root, again, run)
        processes.wait()
        execute(root, again, run)
    execute(root, root / "one to two", run_of(root, "gwt", "fsdp2"))
    interrupted(root, folder / "two to one", run_of(root, "gwt", "fsdp2"))
    found = {"again": finished_again(root, folder / "gwt-fsdp2")}
    try:
        training.make_optimizer(run_of(root, "zero1_adamw", "fsdp2"), torch.nn.Linear(2, 2))
    except UserError as error:
        found["refused"] = str(error)
    return found


def finished_again(root: Path, folder: Path) -> str:
    """What the command says where the run is there."""
    sys.argv = ["pretrain", str(folder / "run" / "run.yaml"), str(folder / "run")]
    sys.argv += ["--data", str(root / "prepared"), "--work", str(folder / "work")]
    with contextlib.redirect_stderr(io.StringIO()) as heard:
        session.main("pretrain", pretrain.make_task)
    return heard.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[Path]:
    """Documents, their tokens, and every method trained by one process."""
    folder: Path = tmp_path_factory.mktemp("training")
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choices(WORDS, k=30))}) for _ in range(300)]
    (folder / "documents.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in METHODS:
            if name != "zero1_adamw":
                execute(folder, folder / "one" / name, run_of(folder, name))
        interrupted(folder, folder / "one to two", run_of(folder, "gwt"))
    yield folder
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="module")
def two(root) -> tuple[Path, list[dict[str, Any]]]:
    folder = root / "two"
    folder.mkdir()
    return folder, spawned_processes.run(work, 2, folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "work" / "model" / "model.safetensors")


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return found


@pytest.mark.parametrize("name, parallel", CASES)
def test_two_processes_equal_one(root, two, name, parallel) -> None:
    ours = two[0] / f"{name}-{parallel}"
    theirs = root / "one" / name.replace("zero1_", "")
    for key, value in weights(theirs).items():
        # averages of halves round otherwise, 1e-7, which eight updates of 1e-2 each pass on
        torch.testing.assert_close(weights(ours)[key], value, rtol=1e-3, atol=1e-4)
    expected = rows(theirs)
    for row, other in zip(rows(ours), expected, strict=True):
        assert (row["step"], row["split"], row["tokens"]) == (
            other["step"],
            other["split"],
            other["tokens"],
        )
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
        if other["grad_norm"] is not None and name != "adama":  # its norm is of micro-gradients
            assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
    provenance = json.loads((ours / "run" / "provenance.json").read_text())
    assert provenance["processes"] == 2


@pytest.mark.parametrize("name, parallel", INTERRUPTED)
def test_resumed_equals_undisturbed(two, name, parallel) -> None:
    first, again = (two[0] / f"{name}-{parallel}{end}" for end in ("", "-again"))
    assert rows(again) == rows(first)
    assert summary(again)["weights_sha256"] == summary(first)["weights_sha256"]
    provenance = json.loads((again / "run" / "provenance.json").read_text())
    assert [session["from_step"] for session in provenance["sessions"]] == [0, 4]


def test_checkpoints_go_on_with_another_number_of_processes(root, two) -> None:
    execute(root, two[0] / "two to one", run_of(root, "gwt"))
    for folder in (root / "one to two", two[0] / "two to one"):
        for key, value in weights(root / "one" / "gwt").items():
            torch.testing.assert_close(weights(folder)[key], value, rtol=1e-3, atol=1e-4)
        provenance = json.loads((folder / "run" / "provenance.json").read_text())
        assert [session["from_step"] for session in provenance["sessions"]] == [0, 4]


def test_state_is_shared_out(root, two) -> None:
    whole = summary(root / "one" / "adamw")["state_bytes"]["measured"]
    for case in ("zero1_adamw-ddp", "adamw-fsdp2"):
        assert summary(two[0] / case)["state_bytes"]["measured"] < 0.6 * whole
    assert summary(two[0] / "adamw-ddp")["state_bytes"]["measured"] == whole


def test_what_cannot_be_divided_is_named_and_the_first_process_speaks(two) -> None:
    assert "is already finished" in two[1][0]["again"]
    assert two[1][1]["again"] == ""
    for found in two[1]:
        assert "FSDP2 shards the states itself: use adamw" in found["refused"]


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = ["accelerate.commands.launch", "--config_file", str(LAUNCH / "cpu.yaml")]


@pytest.mark.parametrize(
    "launcher, parallel",
    [
        (TORCHRUN, "fsdp2"),
        pytest.param(ACCELERATE, "fsdp2", marks=pytest.mark.slow),
        pytest.param(ACCELERATE, "ddp", marks=pytest.mark.slow),
    ],
    ids=["torchrun-fsdp2", "accelerate-fsdp2", "accelerate-ddp"],
)
def test_launchers(root, two, tmp_path, launcher, parallel) -> None:
    """The command as the workflow starts it, and as accelerate does, to the same bits."""
    (tmp_path / "run.yaml").write_text(spec.to_yaml(run_of(root, "gwt", parallel)))
    call = [sys.executable, "-m", *launcher, "-m", "experiments.pretrain"]
    call += [str(tmp_path / "run.yaml"), str(tmp_path / "run")]
    call += ["--data", str(root / "prepared"), "--work", str(tmp_path / "work")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "run")) == sorted(rundir.FILES)
    assert rows(tmp_path) == rows(two[0] / f"gwt-{parallel}")
    ours, theirs = summary(tmp_path), summary(two[0] / f"gwt-{parallel}")
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert not (tmp_path / "work" / "checkpoints").exists()


def test_accelerate_reads_the_launch_files() -> None:
    """With its own loader, which refuses unknown keys; none divides the model itself."""
    files = sorted(LAUNCH.glob("*.yaml"))
    assert [file.stem for file in files] == ["cpu", "gpus"]
    for file in files:
        config = load_config_from_file(str(file))
        assert config.distributed_type == DistributedType.MULTI_GPU  # torchrun's processes
        assert (config.mixed_precision, config.fsdp_config, config.num_machines) == ("no", {}, 1)
        assert config.use_cpu == (file.stem == "cpu")


def test_batches_that_processes_cannot_share(monkeypatch, root) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match=r"batch_size \(8\) must be a multiple .*\(3 x 2\)"):
        training.make_optimizer(run_of(root, "adamw"), torch.nn.Linear(2, 2))
