"""What a tuned model says: answers to a fixed list of instructions, for a person to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from experiments import spec
from experiments.evaluate import evaluating
from experiments.prompts import Template
from experiments.spec import Strict

FILE = Path(__file__).parent / "generation_prompts.yaml"


class Prompt(Strict):
    """One instruction, perhaps with an input."""

    instruction: str
    input: str = ""


class PromptsFile(Strict):
    """``generation_prompts.yaml``."""

    prompts: list[Prompt]


def prompts(path: Path = FILE) -> list[Prompt]:
    """The fixed list."""
    return spec.load(PromptsFile, path).prompts


def generate(
    model: PreTrainedModel, template: Template, asked: list[Prompt], max_new_tokens: int
) -> list[dict[str, Any]]:
    """Greedy answers, one prompt at a time; nothing is drawn, so the same model says the same.

    Returns:
        Per prompt ``instruction``, ``input``, ``answer`` (special tokens left out), ``tokens`` of
        the answer, and ``ended``: whether the model closed it before ``max_new_tokens``.
    """
    own = model.generation_config
    # In place of the model's: what a hub model brings there (sampling, penalties) is not greedy.
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        use_cache=True,
        eos_token_id=template.end,
        pad_token_id=template.padding,
    )
    try:
        with evaluating(model):
            return [_answer(model, template, prompt) for prompt in asked]
    finally:
        model.generation_config = own


def _answer(model: PreTrainedModel, template: Template, prompt: Prompt) -> dict[str, Any]:
    ids = torch.tensor([template.prompt(prompt.instruction, prompt.input)], device=model.device)
    said = model.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.shape[1] :].tolist()
    return {
        "instruction": prompt.instruction,
        "input": prompt.input,
        "answer": template.tokenizer.decode(said, skip_special_tokens=True),
        "tokens": len(said),
        "ended": said[-1] == template.end,
    }


def files(who: str, answers: list[dict[str, Any]]) -> dict[str, str]:
    """The answers as ``generations.jsonl`` and, to be read, ``generations.md``."""
    parts = [f"# Greedy answers of {who}"]
    for answer in answers:
        given = [f"Input: {answer['input']}"] if answer["input"] else []
        how = "" if answer["ended"] else f"(not ended after {answer['tokens']} tokens)"
        said = answer["answer"].strip().replace("\n", "\n> ")
        parts += [f"## {answer['instruction']}", *given, f"> {said} {how}".rstrip()]
    return {
        "generations.jsonl": "".join(json.dumps(a, ensure_ascii=False) + "\n" for a in answers),
        "generations.md": "\n\n".join(parts) + "\n",
    }
