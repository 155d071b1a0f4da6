"""Methods in backward under transformers' Trainer, four micro-batches a step: train, resume."""

from pathlib import Path

import pytest
import torch

import memopt

transformers = pytest.importorskip("transformers")

ACCUMULATION, STEPS, STOP = 4, 6, 3
ARGUMENTS = {"adama": {}, "adalomo": {"micro_batches": ACCUMULATION}}


def tiny_llama() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def rows() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 32, (2 * ACCUMULATION * STEPS, 8), generator=draw)
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(
    folder: Path, name: str, *, in_backward: bool = True, resume: str | None = None, **arguments
) -> tuple[torch.nn.Module, torch.optim.Optimizer, list[dict]]:
    model = tiny_llama()
    optimizer = memopt.create(name, model, lr=0.01, **ARGUMENTS[name])
    if not in_backward:
        optimizer.timing.remove()
    options = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATION,
        num_train_epochs=1,
        max_grad_norm=0.0,  # gradients are gone when Trainer would clip
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        save_steps=STOP,
        save_only_model=False,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=0,
        **arguments,
    )
    trainer = transformers.Trainer(
        model=model, args=options, train_dataset=rows(), optimizers=(optimizer, None)
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return model, optimizer, trainer.state.log_history


def same(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_resumes_to_equal_bits(name, tmp_path) -> None:
    whole, optimizer, log = train(tmp_path / "whole", name)
    assert {state["step"] for state in optimizer.state.values()} == {STEPS}
    assert not same(whole, tiny_llama())
    assert [entry["learning_rate"] for entry in log if "loss" in entry][:3] == [0.0, 0.005, 0.01]
    checkpoint = tmp_path / "whole" / f"checkpoint-{STOP}"
    resumed, after, _ = train(tmp_path / "resumed", name, resume=str(checkpoint))
    assert same(whole, resumed)
    assert {state["step"] for state in after.state.values()} == {STEPS}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adalomo_equals_itself_at_step(checkpointing, tmp_path) -> None:
    """Same accumulation, same schedule; with and without activation checkpointing."""
    timed, _, _ = train(tmp_path / "a", "adalomo", activation_checkpointing=checkpointing)
    plain, _, _ = train(tmp_path / "b", "adalomo", in_backward=False)
    assert same(timed, plain)
