"""Tunes a language model on instructions: ``python -m experiments.instruct RUN.yaml OUT_DIR``."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from experiments import (
    benchmarks,
    generations,
    models,
    packing,
    processes,
    questions,
    session,
    starts,
)
from experiments.data import load_instructions
from experiments.errors import command_line
from experiments.evaluate import batches, language_loss
from experiments.prompts import Encoded, Template, encode
from experiments.scores import Metrics
from experiments.spec import RunSpec
from experiments.training import Task


def make_task(run: RunSpec, data_dir: Path) -> Task:
    """Pretrained language model, rows with masked prompts, held-out loss, and what it says."""
    assert run.instruct  # RunSpec sees to it
    asked = run.instruct
    exams = [(wanted, questions.load(wanted)) for wanted in asked.evaluate or ()]
    splits, manifest = load_instructions(data_dir)
    model, tokenizer = models.causal(run.model, dtype=run.train.dtype)
    model.to(processes.device(cpu=run.resources.gpus == 0))  # it is evaluated before training
    template = Template(asked.template, tokenizer, run.model.name)
    length = run.train.sequence_length
    parts = {name: encode(split, template, length, name) for name, split in splits.items()}
    largest = max(max(row["input_ids"]) for part in parts.values() for row in part.rows)
    models.check_vocabulary(run.model.name, model.config.vocab_size, largest)
    warn(parts, length)

    rows = parts["train"].rows
    collate = pad = partial(packing.padded, padding=template.padding)
    if asked.rows == "packed":
        packing.require_borders(model, rows, length, template.padding)
        rows = packing.pack(rows, length)
        collate = partial(packing.packed, length=length, padding=template.padding)

    def evaluate(model: PreTrainedModel) -> Metrics:
        held_out = batches(parts["validation"].rows, run.train.eval_batch_size, pad)
        found = language_loss(model, held_out)
        return {key: found[key] for key in ("loss", "perplexity")}

    def files(model: PreTrainedModel) -> dict[str, str]:
        prompts = generations.prompts()
        answers = generations.generate(model, template, prompts, asked.max_new_tokens)
        return generations.files(starts.path_of(run), answers)

    return Task(
        model=model,
        rows=rows,
        collate=collate,
        evaluate=evaluate,
        uniform_loss=math.log(model.config.vocab_size),
        references={"untuned_perplexity": evaluate(model)["perplexity"]},
        fingerprint=manifest["source"]["fingerprint"],
        counts={name: part.counts for name, part in parts.items()},
        by_token=True,
        benchmarks=lambda model: [benchmarks.run(model, tokenizer, *exam) for exam in exams],
        files=files,
    )


def warn(parts: dict[str, Encoded], length: int) -> None:
    """Says on stderr how many answers the longest row length has cost; the summary keeps it."""
    for name, part in parts.items():
        dropped, cut = part.counts["dropped"], part.counts["cut"]
        if dropped or cut:
            print(
                f"warning: {name}: of {part.counts['rows'] + dropped} rows, {dropped} were left "
                f"out, whose prompt alone fills {length} tokens, and {cut} answers lost their end",
                file=sys.stderr,
            )


if __name__ == "__main__":
    command_line(partial(session.main, "instruct", make_task))
