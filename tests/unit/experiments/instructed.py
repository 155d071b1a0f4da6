"""A tiny LLaMA with a tokenizer of its own, and instructions in one's and ten's."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.data.tokenizer import train_bpe
from experiments.prompts import ALPACA, ALPACA_WITH_INPUT

CHAT = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
    "{% if m.role == 'assistant' %}</s>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
COLOURS = ("red", "green", "blue", "yellow")


def instructions(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Rows whose answers, of one to five words, can be learned: say the colour again, n times."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        colour, times = draw.choice(COLOURS), draw.randint(1, 5)
        given = "" if draw.random() < 0.5 else f"note {number}"
        rows.append(
            {
                "instruction": f"Say {colour} {times} times, please ({number}).",
                "input": given,
                "output": " ".join([colour] * times),
            }
        )
    return rows


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with ``</s>`` at the end of answers, and a chat template."""
    texts = [f"{r['instruction']} {r['output']}" for r in instructions(50)]
    made = train_bpe([ALPACA, ALPACA_WITH_INPUT, *texts], 400)
    made.chat_template = CHAT
    return made


def model(vocab_size: int = 400) -> LlamaForCausalLM:
    """Two layers, grouped-query attention, fresh weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=False, initializer_range=0.2, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def save(folder: Path) -> Path:
    """A folder as one has it from the hub: config, weights, tokenizer."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def run_content(folder: Path, data: Path, **changes: Any) -> dict[str, Any]:
    """Plain values of a run that takes a second."""
    train = {
        "steps": 12, "batch_size": 8, "micro_batches": 2, "sequence_length": 96,
        "schedule": {"name": "linear", "warmup_fraction": 0.1}, "eval_every": 6, "log_every": 2,
        "checkpoint_every": 4, "eval_batch_size": 3,
    }  # fmt: skip
    return {
        "task": "instruct",
        "study": "test",
        "suite": "test",
        "model": {"name": "tiny_llama", "path": str(folder)},
        "method": changes.pop("method", {"name": "adamw", "lr": 1e-2}),
        "data": {"source": "self_instruct", "path": str(data), "validation_documents": 10},
        "score": {"metric": "perplexity", "select": "last"},
        "instruct": {"max_new_tokens": 8, **changes.pop("instruct", {})},
        "train": train | changes,
    }


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    """A file of the source ``self_instruct``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
