"""Pretrain, then tune: the plan, the model that is handed on, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments import finetune, models, pretrain, rundir, session, spec, starts, suites
from experiments.data import load_tokens
from experiments.errors import UserError
from experiments.export import export
from experiments.spec import RunSpec, parse

from .conftest import make_run, run_content
from .test_finetune import DATA
from .test_finetune import rows as all_rows  # noqa: F401 (a fixture)
from .test_training import interrupt_at

STUDY = """
  - id: tuning
    task: docstring_origin
    models: [{run: convergence/llama_micro/adamw/s0}]
    methods: [{name: adamw, lr: 1e-3}]
    seeds: [0, 1]
    train: &train
      {steps: 4, batch_size: 4, sequence_length: 32, eval_every: 4, log_every: 2,
       checkpoint_every: 4}
"""


@pytest.fixture(scope="module")
def rows(all_rows: dict[str, Path]) -> Path:  # noqa: F811
    """Prepared rows of three classes."""
    return all_rows["made_up"]


@pytest.fixture
def expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Expands the suite `ci` with more studies."""
    for folder in ("models", "methods", "tasks"):
        (tmp_path / folder).symlink_to(suites.HOME / folder)
    text = (suites.HOME / "suites" / "ci.yaml").read_text()
    (tmp_path / "suites").mkdir()
    monkeypatch.setattr(suites, "HOME", tmp_path)

    def expanded(below: str = "", above: str = "", change: tuple[str, str] = ("", "")) -> Any:
        content = text.replace("studies:", f"studies:{above}") + below
        (tmp_path / "suites" / "ci.yaml").write_text(content.replace(*change))
        suites._read.cache_clear()
        return suites.expand("ci")

    yield expanded
    suites._read.cache_clear()


def test_plan_names_the_run_that_must_end_first(expand: Any, tmp_path: Path) -> None:
    runs = expand(STUDY)
    start = next(run for run in runs if starts.path_of(run) == "convergence/llama_micro/adamw/s0")
    plan = {entry["run_id"]: entry for entry in suites.write("ci", runs, tmp_path)["runs"]}
    tuned = [run for run in runs if run.study == "tuning"]
    assert [run.model.run for run in tuned] == [start.run_id] * 2
    assert [plan[run.run_id]["needs"] for run in tuned] == [[start.run_id]] * 2
    assert not any(plan[run.run_id]["needs"] for run in runs if run.study == "convergence")
    assert tuned[0].resources == start.resources
    assert tuned[0].model.name == "llama_micro"
    (named,) = {
        run.model.name
        for run in expand(STUDY.replace("{run:", "{name: mine, run:"))
        if run.model.run
    }
    assert named == "mine"
    # what decides the start's weights decides the identity of what starts from them
    longer = {run.run_id for run in expand(STUDY, change=("steps: 60", "steps: 61"))}
    assert not longer & {run.run_id for run in tuned}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("adamw/s0", "adamv/s0"), "did you mean 'convergence/llama_micro/adamw/s0'?"),
        (("convergence/llama_micro/adamw", "tuning/llama_micro/adamw"), "that stand above it"),
        (("{run:", "{name: llama_nano, run:"), "is another model (models/llama_nano.yaml)"),
        (("{run:", "llama_micro, {run:"), "two models are called 'llama_micro'"),
        (
            ("max_documents: 2000}", "max_documents: 2000, slice: tuning}\n    grid: [1, 2]"),
            "only chooses a learning rate",
        ),
        (("{run:", "{nam: x, run:"), "unknown key 'studies.1.models.0.nam'"),
        (("methods: [adamw,", "methods: [adamw, {name: adamw, lr: 0.5},"), "names 2 runs"),
    ],
)
def test_wrong_starts_are_named(expand: Any, change: tuple[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        expand(STUDY, change=change)
    assert message in str(caught.value)


def test_a_study_above_its_start_is_refused(expand: Any) -> None:
    with pytest.raises(UserError, match="starts from runs of studies that stand above it"):
        expand(above=STUDY)


def test_a_tuned_model_is_no_start(expand: Any) -> None:
    again = STUDY.replace("id: tuning", "id: again").replace("&train", "&again")
    again = again.replace("convergence", "tuning")
    with pytest.raises(UserError, match="is a finetune run; start from a pretrain run"):
        expand(STUDY + again)


@pytest.fixture(scope="module")
def pretrained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSpec]:
    """A folder of runs with one pretraining and its exported model."""
    root = tmp_path_factory.mktemp("pretrained")
    run = make_run(run_content())
    out, work = root / "runs" / run.run_id, root / "work" / run.run_id
    with rundir.locked(work):
        session.execute(run, out, prepared, work, pretrain.make_task)
    export(out, data=prepared)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    return root / "runs", run


def tuning_run(start: RunSpec, **train: Any) -> RunSpec:
    content = {
        "task": "finetune",
        "study": "tuning",
        "suite": "test",
        "model": {"name": "pretrained", "run": start.run_id},
        "method": {"name": "adamw", "lr": 1e-2},
        "data": DATA["made_up"],
        "score": {"metric": "accuracy", "select": "last"},
        "train": {
            **{"steps": 12, "batch_size": 12, "sequence_length": 32, "eval_every": 6},
            **{"log_every": 2, "checkpoint_every": 4},
            **train,
        },
    }
    return parse(RunSpec, content, "test")


def test_exported_model_is_the_one_trained(
    pretrained: tuple[Path, RunSpec], prepared: Path
) -> None:
    runs, run = pretrained
    folder = starts.model_folder(runs / run.run_id)
    summary = json.loads((runs / run.run_id / "summary.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert models.weights_sha256(model) == summary["weights_sha256"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    same = AutoTokenizer.from_pretrained(load_tokens(prepared).tokenizer)
    text = "the optimizer keeps moments"
    assert tokenizer(text).input_ids == same(text).input_ids
    # what ends a text ends a generation; the shape's default id is another token
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 1


def test_tuning_starts_from_those_weights_and_resumes_to_the_same_bits(
    pretrained: tuple[Path, RunSpec],
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, start = pretrained
    run = tuning_run(start)
    task = finetune.make_task(starts.placed(run, runs), rows)
    kept = AutoModelForCausalLM.from_pretrained(starts.model_folder(runs / start.run_id))
    for name, weight in kept.model.state_dict().items():
        assert torch.equal(task.model.model.state_dict()[name], weight), name

    def execute(name: str) -> Any:
        out, work = runs / name, tmp_path / name
        with rundir.locked(work):
            session.execute(run, out, rows, work, finetune.make_task)
        metrics = [json.loads(line) for line in (out / "metrics.jsonl").open()]
        summary = json.loads((out / "summary.json").read_text())
        assert spec.load(RunSpec, out / "run.yaml") == run
        for row in metrics:
            del row["seconds"]
        return summary["weights_sha256"], summary["final"], metrics

    undisturbed = execute("undisturbed")
    with monkeypatch.context() as patch:
        interrupt_at(7, patch)
        with pytest.raises(KeyboardInterrupt):
            execute("disturbed")
    assert execute("disturbed") == undisturbed
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    provenance = json.loads((runs / "undisturbed" / "provenance.json").read_text())
    summary = json.loads((runs / start.run_id / "summary.json").read_text())
    assert provenance["start"] == {
        "run_id": start.run_id,
        "weights_sha256": summary["weights_sha256"],
    }


def test_what_is_missing_or_unfit_is_named(
    pretrained: tuple[Path, RunSpec],
    rows: Path,
    tmp_path: Path,
) -> None:
    runs, start = pretrained
    run = tuning_run(start)
    with pytest.raises(UserError, match=r"does not hold the model.*experiments.export"):
        starts.placed(run, tmp_path)
    other = tmp_path / start.run_id
    starts.model_folder(other).mkdir(parents=True)
    (starts.model_folder(other) / "config.json").write_text("{}")
    (other / "run.yaml").write_text(spec.to_yaml(make_run(run_content(steps=14))))
    with pytest.raises(UserError, match="holds the run test-tiny-adamw-s0"):
        starts.placed(run, tmp_path)
    with pytest.raises(UserError, match="summary.json is missing: the run has not finished"):
        export(other)
    (other / "summary.json").write_text('{"diverged": false}')
    with pytest.raises(UserError, match="final weights .* are no longer there; delete"):
        export(other, work=tmp_path)
    (other / "summary.json").write_text('{"diverged": true}')
    with pytest.raises(UserError, match="has diverged: nothing can start"):
        export(other)


def test_a_tokenizer_of_another_model_is_refused(
    pretrained: tuple[Path, RunSpec],
    rows: Path,
    tmp_path: Path,
) -> None:
    runs, start = pretrained
    folder = starts.model_folder(runs / start.run_id)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for file in folder.iterdir():
        (mixed / file.name).write_bytes(file.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"w{i}" for i in range(30)])
    tokenizer.save_pretrained(mixed)
    run = tuning_run(start).model_copy(
        update={"model": spec.ModelSpec(name="mixed", path=str(mixed))}
    )
    with pytest.raises(UserError, match="model mixed has 300 vocabulary entries, but the tokens"):
        finetune.make_task(run, rows)
