"""Methods under Trainer do what a loop written out by hand does, and what cannot work is named."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

import memopt
from memopt import UnsupportedCombination
from memopt.integrations.transformers import optimizers
from tests.conformance.subjects import tiny_llama

MICRO_BATCHES, STEPS = 4, 3


def rows(count: int = 2 * MICRO_BATCHES * STEPS) -> list[dict[str, torch.Tensor]]:
    """Rows with unequal numbers of labels: a mean of means is not their mean."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 32, (count, 8), generator=draw)
    labels = tokens.clone()
    for index, row in enumerate(labels):
        row[: index % 7] = -100
    return [{"input_ids": a, "labels": b} for a, b in zip(tokens, labels, strict=True)]


def arguments(folder: Path, **changes) -> transformers.TrainingArguments:
    given = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "num_train_epochs": 1,
        "learning_rate": 0.01,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
    }
    return transformers.TrainingArguments(str(folder), **given | changes)


def trained(name: str, args, data=None, *, ordinary: bool = False) -> torch.nn.Module:
    model = tiny_llama()
    pair = optimizers(name, model, args)
    if ordinary:
        pair[0].timing.remove()
    trainer = transformers.Trainer(model, args, train_dataset=data or rows(), optimizers=pair)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return model


def by_hand(name: str, micro_batches: int, **changes) -> torch.nn.Module:
    """The same in plain torch: gradients of the mean over all labels of a step."""
    model, data = tiny_llama(), rows()
    given = {"micro_batches": micro_batches} if memopt.METHODS[name].timing != "step" else {}
    optimizer = memopt.create(name, model, **{"lr": 0.01} | given | changes)
    each = 2 * MICRO_BATCHES // micro_batches
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, step / 2)
        batch = data[2 * MICRO_BATCHES * step :][: 2 * MICRO_BATCHES]
        labels = sum(int((row["labels"][1:] != -100).sum()) for row in batch)
        for start in range(0, len(batch), each):
            some = batch[start : start + each]
            ids, wanted = (torch.stack([r[key] for r in some]) for key in ("input_ids", "labels"))
            logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(
                logits, wanted[:, 1:].flatten(), ignore_index=-100, reduction="sum"
            )
            (loss / labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def close(model: torch.nn.Module, other: torch.nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)  # sums in another order


@pytest.mark.parametrize("name", ["gwt", "lomo", "adalomo", "adama"])
def test_unequal_micro_batches_weigh_by_their_labels(name, tmp_path) -> None:
    # AdamA squares each micro-gradient, so its loop has the same ones; the others one whole batch
    close(
        trained(name, arguments(tmp_path)),
        by_hand(name, micro_batches=MICRO_BATCHES if name == "adama" else 1),
    )


@pytest.mark.parametrize("name", ["lomo", "adama"])
def test_a_short_last_update_of_an_epoch_is_closed(name, tmp_path) -> None:
    args = arguments(tmp_path, num_train_epochs=2)  # 2 updates of 4 and 1 micro-batches, twice
    model = trained(name, args, rows(2 * MICRO_BATCHES + 2))
    whole = trained(name, args, rows(2 * MICRO_BATCHES + 2), ordinary=True)
    if name == "lomo":
        assert all(map(torch.equal, model.parameters(), whole.parameters()))
    assert not any(map(torch.equal, model.parameters(), tiny_llama().parameters()))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adalomo_equals_itself_at_step(checkpointing, tmp_path) -> None:
    """Same accumulation, same schedule; with and without activation checkpointing."""
    args = arguments(tmp_path, gradient_checkpointing=checkpointing)
    timed, plain = trained("adalomo", args), trained("adalomo", args, ordinary=True)
    assert all(map(torch.equal, timed.parameters(), plain.parameters()))


def test_clipping_between_backward_and_step(tmp_path) -> None:
    clipped = trained("gwt", arguments(tmp_path, max_grad_norm=1e-3))
    free = trained("gwt", arguments(tmp_path))
    assert not any(map(torch.equal, clipped.parameters(), free.parameters()))


def test_what_the_arguments_give_and_what_goes_before_them(tmp_path) -> None:
    args = arguments(tmp_path, weight_decay=0.1)
    (optimizer, scheduler) = optimizers("gwt", tiny_llama(), args, level=1)
    assert scheduler is None
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["level"]) == (0.01, 0.1, 1)
    (optimizer, _) = optimizers("gwt", tiny_llama(), args, lr=0.5, weight_decay=0.0, targets=["q_"])
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["weight_decay"] == 0.0
    assert all("q_proj" in name for name, _ in optimizer.treated_parameters())


@pytest.mark.parametrize("name", ["lomo", "adalomo", "adama"])
def test_what_cannot_work_in_backward_is_refused(name, tmp_path) -> None:
    model = tiny_llama()
    with pytest.raises(UnsupportedCombination, match="max_grad_norm=1.0.*set max_grad_norm to 0"):
        optimizers(name, model, transformers.TrainingArguments(str(tmp_path), use_cpu=True))
    fair = {
        "gradient_accumulation_steps": 1, "learning_rate": 0.1, "weight_decay": 0.0,
        "max_grad_norm": 0.0, "fp16": False, "world_size": 1, "deepspeed": None,
    }  # fmt: skip
    for change, words in (
        ({"fp16": True}, "fp16=True.*use bf16"),
        ({"world_size": 2}, "several processes"),
        ({"deepspeed": "ds.json"}, "deepspeed"),
    ):
        with pytest.raises(UnsupportedCombination, match=words):
            optimizers(name, model, SimpleNamespace(**fair | change))


def test_bad_input_is_named(tmp_path) -> None:
    model, args = tiny_llama(), arguments(tmp_path)
    with pytest.raises(ValueError, match="method 'galor'. Did you mean 'galore'"):
        optimizers("galor", model, args)
    with pytest.raises(ValueError, match="argument of gwt 'levle'.*Did you mean 'level'"):
        optimizers("gwt", model, args, levle=2)
    with pytest.raises(TypeError, match="wants the TrainingArguments.*got a dict"):
        optimizers("gwt", model, {"learning_rate": 0.1})
    with pytest.raises(TypeError, match="wants the model"):
        optimizers("gwt", list(model.parameters()), args)
    with pytest.raises(UnsupportedCombination, match="ZeRO-1 AdamW and Trainer"):
        optimizers("zero1_adamw", model, args)
