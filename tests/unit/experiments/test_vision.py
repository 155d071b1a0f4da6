"""Images, networks, schedules and two tasks, on scikit-learn's digits."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from experiments import networks, schedules, session, vision
from experiments.data import load_images
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.order import Order
from experiments.spec import DataSpec, ModelSpec, RunSpec, parse
from experiments.suites import expand
from memopt.subspaces.tucker import PLAIN_ELEMENTS


def make_run(model_type: str, method: dict[str, Any] | None = None, **train: Any) -> RunSpec:
    content = {
        "task": "vision",
        "study": "test",
        "suite": "test",
        "model": {"name": "tiny", "shape": {"model_type": model_type}},
        "method": method or {"name": "adamw", "lr": 1e-2},
        "data": {"source": "digits", "validation_fraction": 0.25, "slice": "final"},
        "train": {
            "steps": 4,
            "batch_size": 32,
            "sequence_length": 1,
            "schedule": {"name": "constant", "warmup_fraction": 0},
            "eval_every": 2,
            "log_every": 1,
            "checkpoint_every": 2,
            **train,
        },
    }
    return parse(RunSpec, content, "test")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "prepared"
    prepare(make_run("mlp").data, folder)
    return folder


def execute(run: RunSpec, images: Path, folder: Path) -> dict[str, Any]:
    out, work = folder / "out", folder / "work"
    work.mkdir(parents=True)
    session.execute(run, out, images, work, vision.make_task)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def test_slices_hold_every_digit_once(tmp_path: Path) -> None:
    digits = load_digits()
    expected = sorted(tuple(row) for row in (digits.data / 8 - 1).astype(np.float32).tolist())
    found = []
    for name in ("tuning", "final"):
        spec = DataSpec(source="digits", validation_fraction=0.25, slice=name)
        manifest = prepare(spec, tmp_path / name)
        assert manifest["source"]["as_recorded"]
        parts, labels, _ = load_images(tmp_path / name)
        assert labels == [str(n) for n in range(10)]
        counts = {part: np.bincount(p.labels, minlength=10) for part, p in parts.items()}
        # of each class a quarter, rounded up
        total = counts["train"] + counts["validation"]
        assert (counts["validation"] == np.ceil(total / 4)).all()
        for part in parts.values():
            found += [tuple(row) for row in part.pixels.reshape(len(part.pixels), 64).tolist()]
    assert sorted(found) == expected


def test_images_are_held_out_by_share(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give 'validation_fraction', not 'validation_documents'"):
        prepare(DataSpec(source="digits", validation_documents=10), tmp_path / "out")


@pytest.mark.parametrize("kind", ["conv_net", "unet"])
def test_networks_have_kernels_for_tucker(kind: str) -> None:
    spec = ModelSpec(name="n", shape={"model_type": kind})
    network = networks.build(spec, seed=0, dtype="float32")
    same = networks.build(spec, seed=0, dtype="float32")
    pairs = zip(network.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    kernels = [p for p in network.parameters() if p.ndim == 4 and p.numel() > PLAIN_ELEMENTS]
    assert len(kernels) >= 3


def test_noise_at_the_last_time_is_almost_all_there_is() -> None:
    """DDPM's linear variances leave 4e-5 of the signal after 1,000 times (Ho et al., section 4)."""
    unet = networks.build(
        ModelSpec(name="n", shape={"model_type": "unet"}), seed=0, dtype="float32"
    )
    assert float(unet.signal[-1]) == pytest.approx(4e-5, rel=0.02)
    noise = torch.randn(4, 1, 8, 8)
    seen: list[torch.Tensor] = []
    unet.predict = lambda noisy, _: seen.append(noisy) or noisy  # type: ignore[method-assign]
    loss = unet(torch.ones_like(noise), noise, torch.full((4,), networks.TIMES - 1)).loss
    assert torch.allclose(seen[0], noise, atol=0.01)
    assert float(loss) < 1e-4


def test_unknown_network_and_size() -> None:
    for shape, message in (
        ({"model_type": "unett"}, "did you mean 'unet'"),
        ({"model_type": "unet", "widht": 8}, "did you mean 'width'"),
    ):
        with pytest.raises(UserError, match=message):
            networks.fresh(ModelSpec(name="n", shape=shape))


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("step", [1, 1, 0.1, 0.01]),
        ("exponential", [math.exp(-0.01 * e) for e in range(4)]),
        ("inverse_time", [1, 1 / 1.01, 1 / 1.02, 1 / 1.03]),
        ("inverse_sqrt", [1, 2**-0.5, 3**-0.5, 0.5]),
    ],
)
def test_rate_falls_from_epoch_to_epoch(
    name: str, factors: list[float], images: Path, tmp_path: Path
) -> None:
    """Two updates an epoch, four epochs: the rate of every update, as it is recorded."""
    schedule = {"name": name, "warmup_fraction": 0}
    run = make_run("mlp", steps=8, batch_size=542, schedule=schedule, checkpoint_every=8)
    execute(run, images, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    rates = [row["lr"] for row in rows if row["split"] == "train"]
    assert rates == pytest.approx([1e-2 * factors[step // 2] for step in range(8)], rel=1e-6)


def test_exact_rate_is_the_formula(images: Path) -> None:
    run = make_run("mlp", batch_size=1085, schedule={"name": "exact", "warmup_fraction": 0})
    task = vision.make_task(run, images)
    found = task.references
    formula = math.sqrt(2 * found["initial_loss"] / (found["smoothness"] * run.train.steps))
    assert found["exact_step_size"] == pytest.approx(formula, rel=1e-12)
    whole = task.collate([task.rows[i] for i in range(len(task.rows))])
    assert found["initial_loss"] == pytest.approx(float(task.model(**whole).loss), rel=1e-6)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=0.5)
    schedule = schedules.scheduler(run.train, len(task.rows), task.references, optimizer)
    assert schedule is not None
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * formula, rel=1e-12)


def test_sum_of_two_tasks_is_adam_on_the_sum(images: Path, tmp_path: Path) -> None:
    """The weighted sum, gathered every micro-batch, is torch's Adam on the plain weighted loss."""
    weights = {"image": 3.0, "digit": 1.0}
    run = make_run(
        "two_tasks",
        {"name": "adamw", "lr": 1e-2, "args": {"betas": [0.0, 0.95], "eps": 1e-8}},
        micro_batches=2,
        losses={"how": "sum_every", "weights": weights},
    )
    summary = execute(run, images, tmp_path)
    task = vision.make_task(run, images)
    model = task.model
    assert isinstance(model, networks.TwoTasks)
    order = Order(task.rows, 4 * 32, run.seeds.data)
    means = [torch.zeros_like(p) for p in model.parameters()]
    squares = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(1, 5):
        batch = task.collate([order[i] for i in range(32 * step - 32, 32 * step)])
        loss = weights["image"] * model.image_loss(batch["images"])
        loss = loss + torch.nn.functional.cross_entropy(
            model.scores(batch["images"]), batch["labels"]
        )
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g, m, v in zip(model.parameters(), grads, means, squares, strict=True):
                m.mul_(0.85).add_(g, alpha=0.15)
                mean = m / (1 - 0.85**step)
                v.mul_(0.95).add_(mean.square(), alpha=0.05)
                p.sub_(1e-2 * mean / ((v / (1 - 0.95**step)).sqrt() + 1e-8))
    final = task.evaluate(model)
    # float32 sums of other orders, through four updates of Adam
    assert summary["final"]["validation_loss"] == pytest.approx(final["loss"], rel=1e-4)
    assert summary["final"]["conflict_share"] == 0


def test_gcond_meets_conflicts(images: Path, tmp_path: Path) -> None:
    losses = {"how": "gcond", "weights": {"image": 5.0, "digit": 1.0}}
    summary = execute(
        make_run("two_tasks", steps=30, micro_batches=4, losses=losses), images, tmp_path
    )
    assert 0 < summary["final"]["conflict_share"] < 1
    assert summary["final"]["image_error"] > 0


def test_misplaced_losses(images: Path) -> None:
    losses = {"how": "sum", "weights": {"image": 1.0, "digit": 1.0}}
    with pytest.raises(UserError, match="has one loss; drop this key"):
        vision.make_task(make_run("mlp", losses=losses), images)
    with pytest.raises(UserError, match="give train.losses with a weight for each of"):
        vision.make_task(make_run("two_tasks"), images)


def test_diffusion_with_tucker(images: Path, tmp_path: Path) -> None:
    """COAP in 8 bit on the diffusion network: trains, and holds the predicted bytes."""
    args = {"rank_ratio": 2, "update_interval": 2, "storage": "8bit"}
    summary = execute(
        make_run("unet", {"name": "coap", "lr": 1e-3, "args": args}), images, tmp_path
    )
    assert summary["state_bytes"]["measured"] == summary["state_bytes"]["predicted"]
    assert 0 < summary["final"]["validation_loss"] < 4


def test_suites_expand() -> None:
    for suite in ("vision_tuning", "vision"):
        assert {run.task for run in expand(suite)} == {"vision"}
