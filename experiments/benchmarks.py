"""Benchmarks of language models: MMLU by likelihood of the letters, GSM8K by exact match.

    python -m experiments.benchmarks MODEL --benchmark mmlu --data DIR --limit 100

MODEL is a folder with weights, config and tokenizer, or a file of ``experiments/models``.

Prompts and counting are those of the benchmarks' authors and of lm-evaluation-harness (tasks
``mmlu`` and ``gsm8k``, strict match); `tests/parity/test_lm_eval.py` compares. Three differences: a
prompt that is too long loses examples, the last ones first, where the harness cuts its beginning
off; examples of GSM8K are the first of the training part, not drawn anew for each question; a
``limit`` draws from all questions, where the harness takes the first ones of each subject.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments import likelihood, models, spec, suites
from experiments.errors import UserError, command_line
from experiments.exam import BenchmarkSpec
from experiments.files import content_hash
from experiments.likelihood import encode, encode_pair
from experiments.questions import BENCHMARKS, LETTERS, Question, final_number, load
from experiments.scores import Metrics

# Where an answer of GSM8K is over, as in lm-evaluation-harness.
STOPS = ("Question:", "</s>", "<|im_end|>")
CONFIDENCE = 0.95


def run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    asked: BenchmarkSpec,
    questions: list[Question],
) -> dict[str, Any]:
    """Asks a model the questions of a benchmark.

    Args:
        model: causal; its device is used.
        tokenizer: of the model.
        asked: which benchmark, and how.
        questions: what `experiments.questions.load` makes of ``asked``; loaded before a training,
            so that missing data is found then and not after it.

    Returns:
        ``benchmark``, ``metric``, ``metrics`` (see :func:`metrics`), ``fingerprint`` of prompts and
        answers, ``shots``, ``fewer_shots`` (questions whose examples did not all fit), ``cut``
        (questions that lost their own beginning), ``subjects`` (score and number of questions of
        each), and ``questions``: of each its ``subject``, ``answer``, what the model ``said``,
        whether that is ``right``, ``shots``, and
        for multiple choice the ``log_likelihoods`` of the letters.

    Raises:
        UserError: ``max_new_tokens`` leaves no room for a question.
    """
    benchmark = BENCHMARKS[asked.benchmark]
    answer = _choose if benchmark.metric == "choice_accuracy" else _solve
    said = answer(model, tokenizer, questions, asked)
    rows = [
        {"subject": q.subject, "answer": q.answer, "right": row["said"] == q.answer, **row}
        for q, row in zip(questions, said, strict=True)
    ]
    by_subject: dict[str, list[bool]] = {}
    for row in rows:
        by_subject.setdefault(row["subject"], []).append(row["right"])
    return {
        "benchmark": asked.benchmark,
        "metric": benchmark.metric,
        "metrics": metrics(benchmark.metric, [row["right"] for row in rows], benchmark.chance),
        "fingerprint": content_hash([[q.prompt(asked.shots), q.answer] for q in questions]),
        "shots": asked.shots,
        "fewer_shots": sum(row["shots"] < asked.shots for row in rows),
        "cut": sum(row.pop("cut") for row in rows),
        "subjects": {
            name: {benchmark.metric: sum(right) / len(right), "questions": len(right)}
            for name, right in sorted(by_subject.items())
        },
        "questions": rows,
    }


def metrics(name: str, right: list[bool], chance: float) -> Metrics:
    """Share of right answers under ``name``, with ``questions``, ``chance`` and Wilson's interval.

    ``<name>_low`` and ``<name>_high`` bound the share, 95 %: what other questions of the same kind
    could have given. It says nothing of other seeds.
    """
    from scipy.stats import binomtest

    counted = binomtest(sum(right), len(right))
    interval = counted.proportion_ci(CONFIDENCE, method="wilson")
    return {
        name: float(counted.statistic),
        f"{name}_low": float(interval.low),
        f"{name}_high": float(interval.high),
        "questions": float(len(right)),
        "chance": chance,
    }


def _choose(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    asked: BenchmarkSpec,
) -> list[dict[str, Any]]:
    """The likeliest of the four letters after each question; of equal ones the first."""
    rows, requests = [], []
    for question in questions:
        longest = max(len(encode_pair(tokenizer, question.asked, f" {x}")[1]) for x in LETTERS)
        # the last token of an answer is never put in
        context, shots, cut = _fit(question, asked.shots, tokenizer, _room(model) - longest + 1)
        rows.append({"shots": shots, "cut": cut})
        for letter in LETTERS:
            whole, ending = encode_pair(tokenizer, question.prompt(shots), f" {letter}")
            requests.append((whole[len(whole) - len(context) :], ending))
    scores = likelihood.log_likelihoods(model, requests, asked.batch_size)
    for number, row in enumerate(rows):
        row["log_likelihoods"] = scores[4 * number : 4 * number + 4]
        row["said"] = LETTERS[row["log_likelihoods"].index(max(row["log_likelihoods"]))]
    return rows


def _solve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    asked: BenchmarkSpec,
) -> list[dict[str, Any]]:
    """The number in each greedy answer; null where there is none."""
    room = _room(model) - asked.max_new_tokens
    if room < 1:
        raise UserError(
            f"benchmark {asked.benchmark}: 'max_new_tokens' ({asked.max_new_tokens}) leaves no "
            f"room for the question: the model takes {_room(model)} tokens"
        )
    fitted = [_fit(question, asked.shots, tokenizer, room) for question in questions]
    texts = likelihood.greedy(
        model,
        tokenizer,
        [context for context, _, _ in fitted],
        asked.max_new_tokens,
        STOPS,
        asked.batch_size,
    )
    return [
        {"shots": shots, "cut": cut, "said": final_number(text), "text": text}
        for text, (_, shots, cut) in zip(texts, fitted, strict=True)
    ]


def _room(model: PreTrainedModel) -> int:
    """Tokens that the model takes at once."""
    return int(model.config.max_position_embeddings)


def _fit(
    question: Question, shots: int, tokenizer: PreTrainedTokenizerBase, room: int
) -> tuple[likelihood.Ids, int, bool]:
    """The prompt with as many examples as fit, their number, and whether its beginning went."""
    for kept in range(shots, -1, -1):
        ids = encode(tokenizer, question.prompt(kept))
        if len(ids) <= room:
            return ids, kept, False
    return ids[-room:], 0, True


def file(result: dict[str, Any]) -> dict[str, str]:
    """The whole result as ``<benchmark>.json``, for a run's folder."""
    return {f"{result['benchmark']}.json": json.dumps(result, indent=1) + "\n"}


def row(result: dict[str, Any]) -> dict[str, Any]:
    """What ``metrics.jsonl`` says of a result."""
    return {"split": result["benchmark"], result["metric"]: result["metrics"][result["metric"]]}


def sentence(result: dict[str, Any]) -> str:
    """The result in a line or two."""
    found, name = result["metrics"], result["metric"]
    lines = [
        f"{result['benchmark']}: {name} {found[name]:.4f} "
        f"(95 %: {found[f'{name}_low']:.4f} to {found[f'{name}_high']:.4f}; chance "
        f"{found['chance']:g}), {found['questions']:g} questions, {result['shots']} shots"
    ]
    if result["fewer_shots"] or result["cut"]:
        lines.append(
            f"warning: {result['fewer_shots']} questions have fewer shots, {result['cut']} lost "
            f"their beginning: the model takes no longer prompts"
        )
    return "\n".join(lines)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a folder, or a name of experiments/models")
    parser.add_argument("--benchmark", required=True, metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--data", metavar="DIR", help="its files; default data/local/NAME, or hub")
    for name in ("limit", "shots", "batch_size", "max_new_tokens"):
        default = BenchmarkSpec.model_fields[name].default
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, type=int, default=default, metavar="N", help=f"default {default}"
        )
    parser.add_argument("--out", type=Path, metavar="FILE", help="every answer, as JSON")
    arguments = parser.parse_args()
    asked = spec.parse(
        BenchmarkSpec,
        {
            "benchmark": arguments.benchmark,
            "path": arguments.data,
            "limit": arguments.limit,
            "shots": arguments.shots,
            "batch_size": arguments.batch_size,
            "max_new_tokens": arguments.max_new_tokens,
        },
        "command line",
    )
    questions = load(asked)
    if Path(arguments.model).is_dir():
        origin = spec.ModelSpec(name="given", path=arguments.model)
    else:
        origin = suites.model_spec(arguments.model)
    model, tokenizer = models.causal(origin, dtype="float32")
    result = run(model, tokenizer, asked, questions)
    if arguments.out:
        arguments.out.write_text(*file(result).values())
    print(sentence(result))


if __name__ == "__main__":
    command_line(_main)
