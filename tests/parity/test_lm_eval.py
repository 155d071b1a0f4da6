"""Our benchmarks against lm-evaluation-harness, on the same questions and model.

The harness is no dependency of the project: the test runs where it is installed (0.4.13).
"""

import importlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments import benchmarks, questions
from experiments.data.tokenizer import train_bpe
from experiments.exam import BenchmarkSpec

lm_eval = pytest.importorskip("lm_eval", reason="pip install lm-eval==0.4.13")


def module(name: str) -> Any:
    """A module of the harness, by its name there."""
    return importlib.import_module(f"lm_eval.{name}")


pytestmark = pytest.mark.slow  # the harness alone takes seconds to import

SUBJECTS = ("abstract_algebra", "high_school_us_history")
SHOTS = 2
SHORT = 24  # tokens of an answer


@pytest.fixture(scope="module")
def model_and_tokenizer(shared: Path) -> tuple[Any, Any]:
    """A LLaMA with random weights: its answers mean nothing, but every prompt tells on them."""
    rows = pd.read_parquet(shared / "data/mmlu/dev.parquet")
    texts = [f"{row.question} Answer: {' '.join(row.choices)}" for row in rows.itertuples()]
    problems = pd.read_parquet(shared / "data/instruct/gsm8k/train.parquet")[:300]
    texts += [f"Question: {row.question} Answer: {row.answer}" for row in problems.itertuples()]
    tokenizer = train_bpe(texts, 1000)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=8192, initializer_range=0.2,
        bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


def harness(model_and_tokenizer: Any, tasks: Path, names: list[str], shots: int) -> dict[str, Any]:
    """What the harness says of each document of some tasks."""
    HFLM = module("models.huggingface").HFLM
    TaskManager = module("tasks").TaskManager
    model, tokenizer = model_and_tokenizer
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=8192),
        tasks=names,
        num_fewshot=shots,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    assert found is not None
    return found


def test_mmlu(shared: Path, tmp_path: Path, model_and_tokenizer: Any) -> None:
    """Log-likelihood of every letter, and accuracy, of the harness's own task text."""
    tasks = module("tasks")
    template = Path(tasks.__file__).parent / "mmlu/default/_default_template_yaml"
    (tmp_path / "_default_template_yaml").write_text(template.read_text())
    for split, count in (("test", 8), ("dev", 5)):
        rows = pd.read_parquet(shared / f"data/mmlu/{split}.parquet")
        kept = pd.concat([rows[rows.subject == subject][:count] for subject in SUBJECTS])
        kept.to_parquet(tmp_path / f"{split}.parquet", index=False)
        for subject in SUBJECTS:
            part = kept[kept.subject == subject]
            part.to_parquet(tmp_path / f"{subject}_{split}.parquet", index=False)
    for subject in SUBJECTS:
        own = template.with_name(f"mmlu_{subject}.yaml").read_text()
        files = {split: str(tmp_path / f"{subject}_{split}.parquet") for split in ("test", "dev")}
        lines = [
            line for line in own.splitlines() if not line.startswith(('"dataset_name"', '"tag'))
        ]
        lines += ["dataset_path: parquet", f"dataset_kwargs: {json.dumps({'data_files': files})}"]
        (tmp_path / f"mmlu_{subject}.yaml").write_text("\n".join(lines))
    names = [f"mmlu_{subject}" for subject in SUBJECTS]
    theirs = harness(model_and_tokenizer, tmp_path, names, SHOTS)
    asked = BenchmarkSpec(benchmark="mmlu", path=str(tmp_path), shots=SHOTS, batch_size=4)
    ours = benchmarks.run(*model_and_tokenizer, asked, questions.load(asked))
    assert ours["fewer_shots"] == ours["cut"] == 0
    for subject, name in zip(SUBJECTS, names, strict=True):
        rows = [row for row in ours["questions"] if row["subject"] == subject]
        samples = sorted(theirs["samples"][name], key=lambda sample: sample["doc_id"])
        assert len(rows) == len(samples) == 8
        for row, sample in zip(rows, samples, strict=True):
            expected = [response[0][0] for response in sample["resps"]]
            # float32; they pad on the other side
            assert row["log_likelihoods"] == pytest.approx(expected, rel=1e-4)
            assert float(row["right"]) == sample["acc"]
        accuracy = ours["subjects"][subject]["choice_accuracy"]
        assert accuracy == pytest.approx(theirs["results"][name]["acc,none"])


def test_gsm8k(shared: Path, tmp_path: Path, model_and_tokenizer: Any) -> None:
    """The same greedy answers, and the same verdict on answers that differ in form."""
    tasks = module("tasks")
    for split, count in (("train", 4), ("test", 6)):
        rows = pd.read_parquet(shared / f"data/instruct/gsm8k/{split}.parquet")[:count]
        rows.to_parquet(tmp_path / f"{split}.parquet", index=False)
    own = (Path(tasks.__file__).parent / "gsm8k/gsm8k.yaml").read_text()
    files = {split: str(tmp_path / f"{split}.parquet") for split in ("test", "train")}
    own = own.replace("dataset_path: openai/gsm8k", "dataset_path: parquet")
    own = own.replace("dataset_name: main", f"dataset_kwargs: {json.dumps({'data_files': files})}")
    own = own.replace(
        "fewshot_split: train", "fewshot_split: train\nfewshot_config: {sampler: first_n}"
    )
    own = own.replace("do_sample: false", f"do_sample: false\n  max_gen_toks: {SHORT}")
    (tmp_path / "gsm8k.yaml").write_text(own)
    theirs = harness(model_and_tokenizer, tmp_path, ["gsm8k"], SHOTS)
    asked = BenchmarkSpec(
        benchmark="gsm8k", path=str(tmp_path), shots=SHOTS, batch_size=4, max_new_tokens=SHORT
    )
    ours = benchmarks.run(*model_and_tokenizer, asked, questions.load(asked))
    strict = [s for s in theirs["samples"]["gsm8k"] if s["filter"] == "strict-match"]
    samples = sorted(strict, key=lambda sample: sample["doc_id"])
    assert len(samples) == len(ours["questions"]) == 6
    for row, sample in zip(ours["questions"], samples, strict=True):
        assert row["text"] == sample["resps"][0][0]
        assert float(row["right"]) == sample["exact_match"]


@pytest.mark.parametrize("text", ["#### 18", "#### 1,8", "#### 18.", "#### 18.0", "18", "#### -18"])
def test_verdicts_on_gsm8k(text: str) -> None:
    """Filter and comparison of the harness, as its task file combines them."""
    exact_match_fn = module("api.metrics").exact_match_fn
    RegexFilter = module("filters.extraction").RegexFilter
    (answer,) = RegexFilter(r"#### (\-?[0-9\.\,]+)").apply([[text]], [{}])
    ignored = [",", "\\$", "(?s).*#### ", "\\.$"]
    theirs = exact_match_fn(
        predictions=answer, references=["9+9=18\n#### 18"], regexes_to_ignore=ignored
    )
    assert (questions.final_number(text) == "18") == bool(theirs["exact_match"])
