"""Benchmarks at the end of an instruct run, and from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import benchmarks, instruct, models, questions, results, rundir, session
from experiments.errors import UserError
from experiments.exam import BenchmarkSpec
from experiments.spec import ModelSpec, RunSpec, parse

from . import instructed
from .test_benchmarks import choice_rows, write


@pytest.fixture
def mmlu(tmp_path: Path) -> Path:
    write(tmp_path / "mmlu", "test", choice_rows(40, 1))
    write(tmp_path / "mmlu", "dev", choice_rows(6, 2))
    return tmp_path / "mmlu"


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    made = [{"question": f"Twice {n}?", "answer": f"#### {2 * n}"} for n in range(5)]
    for name in ("train", "test"):
        write(tmp_path / "gsm8k", name, made)
    return tmp_path / "gsm8k"


def test_an_instruct_run_is_examined_at_its_end(mmlu: Path, gsm8k: Path, tmp_path: Path) -> None:
    rows = instructed.write_rows(tmp_path / "rows.jsonl", instructed.instructions(30))
    exams = [
        {"benchmark": "mmlu", "path": str(mmlu), "limit": 20, "shots": 0},
        {"benchmark": "gsm8k", "path": str(gsm8k), "shots": 1, "max_new_tokens": 8},
    ]
    content = instructed.run_content(
        instructed.save(tmp_path / "llama"), rows, steps=4, instruct={"evaluate": exams}
    )
    run = parse(RunSpec, content, "test")
    without = content | {"instruct": {"max_new_tokens": 8}}
    assert run.run_id != parse(RunSpec, without, "test").run_id
    out, work = tmp_path / "run", tmp_path / "work"
    try:
        with rundir.locked(work):
            session.execute(run, out, tmp_path / "data", work, instruct.make_task)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
    answers = {name: json.loads((out / f"{name}.json").read_text()) for name in ("mmlu", "gsm8k")}
    assert [len(answers[name]["questions"]) for name in answers] == [20, 5]
    # the tuned weights were asked, not those from before
    tuned, its_tokenizer = models.causal(
        ModelSpec(name="m", path=str(with_tokenizer(work / "model"))), dtype="float32"
    )
    wanted = parse(BenchmarkSpec, exams[0], "test")
    again = benchmarks.run(tuned, its_tokenizer, wanted, questions.load(wanted))
    assert again["questions"] == answers["mmlu"]["questions"]

    runs, metrics = results.collect([out])
    share = answers["mmlu"]["metrics"]["choice_accuracy"]
    assert runs.final_mmlu_choice_accuracy[0] == share
    assert runs.final_mmlu_chance[0] == 0.25 and runs.final_gsm8k_exact_match[0] == 0.0
    (row,) = metrics[metrics.split == "mmlu"].itertuples()
    assert (row.step, row.choice_accuracy) == (4, share)
    # a session that was killed after its exams and goes on writes no second row
    file = rundir.MetricsFile(work / "metrics.jsonl")
    before = file.rows()
    file.conclude({"split": "mmlu", "choice_accuracy": share})
    assert file.rows() == before


def with_tokenizer(folder: Path) -> Path:
    instructed.tokenizer().save_pretrained(folder)
    return folder


def test_missing_questions_are_found_before_training(tmp_path: Path) -> None:
    rows = instructed.write_rows(tmp_path / "rows.jsonl", instructed.instructions(30))
    content = instructed.run_content(
        instructed.save(tmp_path / "llama"),
        rows,
        instruct={"evaluate": [{"benchmark": "mmlu", "path": str(tmp_path / "nowhere")}]},
    )
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        instruct.make_task(parse(RunSpec, content, "test"), tmp_path / "data")


def test_command(mmlu: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = instructed.save(tmp_path / "llama")
    options = f"--benchmark mmlu --data {mmlu} --limit 10 --shots 0 --out {tmp_path}/answers.json"
    monkeypatch.setattr("sys.argv", ["benchmarks", str(folder), *options.split()])
    benchmarks._main()
    said = capsys.readouterr().out
    assert said.startswith("mmlu: choice_accuracy 0.") and "chance 0.25), 10 questions" in said
    assert len(json.loads((tmp_path / "answers.json").read_text())["questions"]) == 10
    monkeypatch.setattr("sys.argv", ["benchmarks", str(folder), "--benchmark", "mmul"])
    with pytest.raises(UserError, match="command line: benchmark: input should be 'mmlu' or"):
        benchmarks._main()
