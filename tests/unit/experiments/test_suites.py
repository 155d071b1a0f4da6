"""Suites expand, quickly and completely, to valid runs with the papers' numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import networks, spec, suites
from experiments.errors import UserError
from experiments.spec import RunSpec
from memopt import METHODS, accounting


@pytest.mark.parametrize("suite", suites.names("suites"))
def test_suite_expands_to_runs_that_load_again(suite: str, tmp_path: Path) -> None:
    runs = suites.expand(suite)
    plan = suites.write(suite, runs, tmp_path)
    assert [entry["run_id"] for entry in plan["runs"]] == [run.run_id for run in runs]
    for run, entry in zip(runs, plan["runs"], strict=True):
        assert spec.load(RunSpec, tmp_path / "runs" / f"{run.run_id}.yaml") == run
        data = spec.load(spec.DataSpec, tmp_path / "datasets" / f"{entry['data_id']}.yaml")
        assert data.data_id == entry["data_id"]
    assert {entry["data_id"] for entry in plan["datasets"]} == {r.data.data_id for r in runs}
    json.dumps(plan)


@pytest.mark.parametrize("suite", suites.names("suites"))
def test_methods_take_the_arguments_of_their_files(suite: str) -> None:
    pairs = {(r.method.name, r.model.name): r for r in suites.expand(suite) if r.model.shape}
    for run in pairs.values():
        if run.model.name in ("llama_350m", "llama_1b"):
            continue  # the arguments of the small ones, at a size that takes seconds to describe
        model = networks.fresh(run.model) if run.task == "vision" else run.model.name
        report = accounting.predict(model, run.method.name, **run.method.args)
        assert report.weights > 0


def test_smoke_runs_every_method_once() -> None:
    final = [run for run in suites.expand("smoke") if not run.tuning]
    pretrained = [run.method.name for run in final if run.task == "pretrain"]
    several = {name for name, method in METHODS.items() if method.kind == "distributed"}
    assert sorted(pretrained) == sorted(set(suites.names("methods")) - several)
    assert set(pretrained) <= set(METHODS)
    assert all(run.smoke and run.threads == 1 for run in suites.expand("smoke"))


# GaLore's protocol, baselines.md section 1: steps and rank; 131,072 tokens a step.
@pytest.mark.parametrize(
    ("model", "steps", "rank"),
    [
        ("llama_60m", 10_000, 128),
        ("llama_130m", 20_000, 256),
        ("llama_350m", 60_000, 256),
        ("llama_1b", 100_000, 512),
    ],
)
def test_paper_suite_follows_the_protocol(model: str, steps: int, rank: int) -> None:
    size = model.removeprefix("llama_")
    runs = {r.method.name: r for r in suites.expand("paper") if r.study == f"c4_{size}"}
    assert "galore" in runs
    for run in runs.values():
        train = run.train
        assert train.steps == steps
        assert train.batch_size * train.sequence_length == 131_072
        assert train.dtype == "bfloat16"
        assert train.schedule.warmup_fraction == train.schedule.min_lr_ratio == 0.1
        assert run.data.source == "c4"
        assert run.data.tokenizer and run.data.tokenizer.label == "t5-base"
    assert runs["galore"].method.args["rank"] == runs["coap"].method.args["rank"] == rank
    assert runs["galore"].method.args["update_interval"] == 200
    assert runs["gwt"].method.args["level"] == 2
    for name in ("galore", "gwt"):
        assert (runs[name].method.lr, runs[name].method.args["scale"]) == (0.01, 0.25)


def test_a_methods_hyperparameter_changes_its_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {run.run_id: run for run in suites.expand("smoke")}
    file = suites._read(suites.MethodFile, "methods", "gwt")
    changed = file.model_copy(update={"args": {**file.args, "level": 1}})
    read = suites._read
    monkeypatch.setattr(
        suites,
        "_read",
        lambda kind, folder, name: changed if name == "gwt" else read(kind, folder, name),
    )
    after = {run.run_id: run for run in suites.expand("smoke")}
    gone = {run.method.name for key, run in before.items() if key not in after}
    assert gone == {"gwt"}
    assert len(after) == len(before)


def test_tokenizer_and_length_come_from_model_and_training() -> None:
    for run in suites.expand("smoke"):
        if run.task == "pretrain":
            assert run.model.shape and run.data.tokenizer
            assert run.data.tokenizer.vocab_size == run.model.shape["vocab_size"]
            assert run.data.sequence_length == run.train.sequence_length


def test_only_selects_by_path_or_id() -> None:
    runs = suites.expand("paper")
    chosen = suites.select(runs, "llama_60m/gwt")
    assert [(r.model.name, r.method.name) for r in chosen] == [("llama_60m", "gwt")]
    assert suites.select(runs, chosen[0].run_id) == chosen
    with pytest.raises(UserError, match="no run of the suite matches 'llama_60m/gtw'"):
        suites.select(runs, "llama_60m/gtw")


def test_second_expansion_touches_no_file(tmp_path: Path) -> None:
    runs = suites.expand("smoke")
    suites.write("smoke", runs, tmp_path)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.yaml")}
    suites.write("smoke", runs, tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.yaml")} == stamps


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[llama_micro]", "[llama_mikro]", "unknown model 'llama_mikro'; did you mean"),
        ("adalomo]", "adalom]", "unknown method 'adalom'; did you mean 'adalomo'?"),
        ("task: pydocs", "task: pydoc", "unknown task 'pydoc'; did you mean 'pydocs'?"),
        ("seeds:", "sedes:", "ci.yaml: unknown key 'studies.0.sedes'; did you mean 'seeds'?"),
        ("[llama_micro]", "[roberta_base]", "has no learning rate for the model 'roberta_base'"),
        ("[0]", "[0, 0]", "is listed twice"),
        ("max_documents: 2000", "max_document: 2000", "did you mean 'max_documents'?"),
    ],
)
def test_wrong_names_get_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    for folder in ("models", "methods", "tasks"):
        (tmp_path / folder).symlink_to(suites.HOME / folder)
    text = (suites.HOME / "suites" / "ci.yaml").read_text()
    assert old in text
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "ci.yaml").write_text(text.replace(old, new))
    monkeypatch.setattr(suites, "HOME", tmp_path)
    suites._read.cache_clear()
    try:
        with pytest.raises(UserError) as caught:
            suites.expand("ci")
    finally:
        suites._read.cache_clear()
    assert message in str(caught.value)


def test_command_prints_the_plan_and_refuses_in_one_line(repo: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "experiments.suites", "expand"]
    done = subprocess.run(
        [*call, "ci", "--out", str(tmp_path)], capture_output=True, text=True, cwd=repo
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["suite"] == "ci"
    done = subprocess.run(
        [*call, "smok", "--out", str(tmp_path)], capture_output=True, text=True, cwd=repo
    )
    assert done.returncode == 2
    assert done.stderr == "error: unknown suite 'smok'; did you mean 'smoke'?\n"


def test_misspelt_method_argument_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = suites._read
    misspelt = read(suites.MethodFile, "methods", "gwt").model_copy(update={"args": {"levle": 3}})
    monkeypatch.setattr(
        suites,
        "_read",
        lambda kind, folder, name: misspelt if name == "gwt" else read(kind, folder, name),
    )
    with pytest.raises(UserError, match=r"gwt takes no 'levle'; did you mean 'level'\?"):
        suites.expand("smoke")
