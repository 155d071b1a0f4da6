"""Every method under a real Trainer: accumulation, clipping, a schedule; stopped and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from memopt.integrations.transformers import optimizers
from tests.conformance.subjects import tiny_llama

MICRO_BATCHES, STEPS, STOP = 2, 4, 2


def rows() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 32, (2 * MICRO_BATCHES * STEPS, 8), generator=draw)
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(subject: Any, folder: Path, resume: str | None = None) -> tuple[Any, Any]:
    """Trains a tiny LLaMA from the start, or from a checkpoint, to the last step."""
    model = tiny_llama()
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_steps=STEPS,
        learning_rate=0.01,
        max_grad_norm=1.0 if subject.method.timing == "step" else 0.0,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        save_steps=STOP,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    pair = optimizers(subject.method.name, model, args, **subject.arguments)
    trainer = transformers.Trainer(model, args, train_dataset=rows(), optimizers=pair)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, pair[0]


@pytest.mark.law("trainer")
def test_resumes_under_trainer_to_the_bits_of_an_undisturbed_run(subject, tmp_path) -> None:
    whole, optimizer = train(subject, tmp_path / "whole")
    rates = [entry["learning_rate"] for entry in whole.state.log_history if "loss" in entry]
    assert rates == [0.0, subject.arguments.get("lr", 0.01) / 2, *[0.01] * (STEPS - 2)]
    start = dict(tiny_llama().named_parameters())
    assert all(
        not torch.equal(param, start[name])
        for name, param in whole.model.named_parameters()
        if name in start and param.requires_grad
    )
    checkpoint = tmp_path / "whole" / f"checkpoint-{STOP}"
    resumed, after = train(subject, tmp_path / "resumed", resume=str(checkpoint))
    assert all(map(torch.equal, whole.model.parameters(), resumed.model.parameters()))
    steps = {int(state["step"]) for state in after.state.values() if "step" in state}
    assert steps == {int(state["step"]) for state in optimizer.state.values() if "step" in state}
    assert steps <= {STEPS, 0}  # updates, not micro-batches; 0 just after a merge of ReLoRA
