"""Traced steps against formulas, hand counts, and what a live step really allocates."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import memopt
from memopt.accounting import measure, predict, shapes, trace
from memopt.accounting.tracing import KINDS
from tests.unit.accounting.allocator import peak_of
from tests.unit.accounting.settings import ARGUMENTS

ROWS, LENGTH = 4, 48


def build_model(*, checkpointing: bool = False) -> nn.Module:
    config = LlamaConfig(**shapes.named("llama_micro"), attn_implementation="eager")
    model = LlamaForCausalLM(config).train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model


def build_batch() -> dict:
    ids = torch.zeros((ROWS, LENGTH), dtype=torch.long)
    return {"input_ids": ids, "labels": ids, "use_cache": False}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ARGUMENTS)
def test_constant_parts_are_the_predicted_ones(method: str, dtype: str) -> None:
    arguments = ARGUMENTS[method]
    traced = trace(build_model, build_batch, method, dtype, **arguments)
    predicted = predict("llama_micro", method, dtype, **arguments)
    assert traced.dtype == dtype
    assert traced.peak["weights"] == predicted.weights
    assert traced.peak["states"] == predicted.states + predicted.projections
    assert traced.highest("states") == traced.peak["states"]
    assert traced.highest("gradients") == predicted.gradients
    assert all(min(kinds.values()) >= 0 for _, kinds in traced.timeline)


class Chain(nn.Module):
    """Two matrices and no bias: every activation can be counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum()


def test_hand_count() -> None:
    rows = 50
    traced = trace(Chain, lambda: {"x": torch.zeros(rows, 16)}, "lomo")
    hidden, matrix, scalar = 4 * rows * 16, 4 * 16 * 16, 4
    assert traced.peak["weights"] == 2 * matrix
    assert traced.peak["other"] == hidden  # the batch
    forward = [kinds["activations"] for phase, kinds in traced.timeline if phase == "forward"]
    # tanh keeps its output and lets go its input; the sum makes a scalar beside the two outputs
    assert max(forward) == 3 * hidden  # second layer: first output, product, second output
    assert forward[-1] == pytest.approx(2 * hidden, abs=3 * scalar)


@pytest.mark.parametrize("method", ["adamw", "adama", "lomo"])
def test_gradients_over_micro_batches(method: str) -> None:
    traced = trace(Chain, lambda: {"x": torch.zeros(50, 16)}, method, micro_batches=3)
    one, all_ = 4 * 16 * 16, 4 * 2 * 16 * 16
    # a later micro-batch's gradient lives beside the sum until it is added
    assert traced.highest("gradients") == {"adama": one}.get(method, all_ + one)
    phases = [phase for phase, _ in traced.timeline]
    changes = [b for a, b in zip([None, *phases], phases, strict=False) if a != b]
    assert changes == [*["forward", "backward"] * 3, "step"]


def live_peak(method: str, folder: Path, *, checkpointing: bool) -> int:
    """The most bytes that one live step holds: the CPU allocator's own record, by the profiler.

    What lived before the step (weights, states, batch, buffers) is added: the record starts empty.
    """
    model = build_model(checkpointing=checkpointing)
    optimizer = memopt.create(method, model, lr=1e-3, **ARGUMENTS[method])
    batch = build_batch()

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    report = measure(model, optimizer)
    before = report.weights + report.states + report.projections + batch["input_ids"].nbytes
    before += sum(buffer.nbytes for buffer in model.buffers())
    return before + peak_of(step, folder)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("method", ["adamw", "gwt", "lomo"])
def test_peak_is_that_of_a_live_step(method: str, checkpointing: bool, tmp_path: Path) -> None:
    arguments = ARGUMENTS[method]
    traced = trace(
        lambda: build_model(checkpointing=checkpointing), build_batch, method, **arguments
    )
    # 5 % is what the accounting promises; the difference seen is below 1 % (random-number state)
    live = live_peak(method, tmp_path, checkpointing=checkpointing)
    assert traced.total == pytest.approx(live, rel=0.01)


def test_thinned_timeline_keeps_the_peak() -> None:
    traced = trace(build_model, build_batch, "gwt", level=1)
    rows = traced.thinned(50)
    assert 25 <= len(rows) <= 50
    assert max(sum(row[kind] for kind in KINDS) for row in rows) == traced.total
    assert [row["operation"] for row in rows] == sorted(row["operation"] for row in rows)
    assert json.loads(json.dumps(traced.to_dict()))["total"] == traced.total


def test_nothing_is_left_behind() -> None:
    trace(build_model, build_batch, "adamw", "bfloat16")
    assert torch.get_default_dtype() is torch.float32
    assert type(torch.zeros(1)) is torch.Tensor


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum() * float(x.sum())


@pytest.mark.parametrize(
    ("build", "options", "error", "words"),
    [
        (Chain, {"method": "lomoo"}, ValueError, "Did you mean 'lomo'"),
        (Chain, {"method": "lomo", "dtype": "float16"}, ValueError, "bfloat16"),
        (Chain, {"method": "gwt", "levl": 1}, ValueError, "Did you mean 'level'"),
        (Chain, {"method": "lomo", "micro_batches": 0}, ValueError, "micro_batches"),
        (Undecided, {"method": "lomo"}, memopt.UnsupportedCombination, "values of tensors"),
    ],
)
def test_what_cannot_be_traced(build, options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        trace(build, lambda: {"x": torch.zeros(2, 4 if build is Undecided else 16)}, **options)


def test_an_output_without_loss_is_named() -> None:
    with pytest.raises(ValueError, match="labels"):
        trace(lambda: nn.Linear(3, 3), lambda: {"input": torch.zeros(2, 3)}, "lomo")
    traced = trace(
        lambda: nn.Linear(3, 3),
        lambda: {"input": torch.zeros(2, 3)},
        "lomo",
        loss=lambda model, batch: model(**batch).sum(),
    )
    assert traced.peak["weights"] == 4 * 12
