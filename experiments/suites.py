"""Suites: lists of studies, expanded to runs.

A study is a product: models x methods x seeds, on one task. Its models may be what runs of studies
above it have pretrained. ``expand`` resolves every name (model, method, task) through the YAML
folders beside this file into complete run specifications.

    python -m experiments.suites expand smoke --out results/smoke/spec
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from experiments import spec, starts
from experiments.data.sources import check_score, missing
from experiments.epochs import in_updates
from experiments.errors import UserError, command_line, nearest
from experiments.files import write_if_changed
from experiments.hyperparameters import MethodChoice, MethodFile, check_arguments
from experiments.probes import GradientsSpec
from experiments.shapes import shapes
from experiments.spec import MethodSpec, ModelSpec, Name, Resources, RunSpec, Seeds, Strict
from experiments.starts import ModelChoice
from experiments.tuning import TunedFile

HOME = Path(__file__).parent


class ModelFile(Strict):
    """``models/<name>.yaml``: where a model comes from and what running it takes.

    Attributes:
        shape: name of a shape of ``memopt/accounting/shapes.toml``; or one of
        network: a network of `experiments.networks` with its ``model_type`` and sizes; or
        package, path, hub, revision: pretrained weights, see :class:`ModelSpec`.
        resources: for the scheduler.
    """

    shape: Name | None = None
    network: dict[str, Any] | None = None
    package: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    resources: Resources


class TaskFile(Strict):
    """``tasks/<name>.yaml``: what is learned from which documents.

    Attributes:
        task: which command trains it.
        data: keys of :class:`~experiments.spec.DataSpec`. ``sequence_length`` is taken from the
            study, ``tokenizer.vocab_size`` of a trained tokenizer from the model.
        score: by which tables rank, and which evaluation counts.
        instruct: keys of :class:`~experiments.spec.InstructSpec`, of that task only.
    """

    task: spec.TaskName
    data: dict[str, Any]
    score: spec.ScoreSpec | None = None
    instruct: dict[str, Any] | None = None


def _name_only(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _one_number(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return {"weights": value, "data": value} if is_number else value


class Study(Strict):
    """One comparison: every model with every method at every seed.

    Attributes:
        id: prefix of the run identifiers.
        task: a file of ``tasks``.
        data, instruct: keys that override the task's.
        models: names, or ``{run, name}``.
        methods: names, or ``{name, lr, args}``; or ``all``: every method of one process whose file
            has a rate for each of the models.
        seeds: a number, or ``{weights, data}``.
        grid: makes it a study that tunes: factors on the learning rate of the methods' files, the
            same for every method.
        rates: makes it a study with tuned rates: a file of ``tuned``, in place of the rates of the
            methods' files.
        train: keys of :class:`~experiments.spec.TrainSpec`; with ``epochs`` in place of ``steps``
            those of the official training rows, see `experiments.epochs`.
    """

    id: Name
    task: Name
    data: dict[str, Any] = {}
    instruct: dict[str, Any] | None = None
    models: Annotated[
        list[Annotated[ModelChoice, BeforeValidator(_name_only)]], Field(min_length=1)
    ]
    methods: (
        Literal["all"]
        | Annotated[list[Annotated[MethodChoice, BeforeValidator(_name_only)]], Field(min_length=1)]
    )
    seeds: Annotated[list[Annotated[Seeds, BeforeValidator(_one_number)]], Field(min_length=1)]
    grid: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] | None = None
    rates: Name | None = None
    train: spec.TrainSpec
    threads: PositiveInt = 1
    resources: Resources | None = None

    @model_validator(mode="before")
    @classmethod
    def _epochs_to_updates(cls, content: Any) -> Any:
        train = content.get("train") if isinstance(content, dict) else None
        if not isinstance(train, dict) or "epochs" not in train:
            return content
        task: TaskFile = _read(TaskFile, "tasks", content.get("task", ""))
        data = {**task.data, **content.get("data", {})}
        return {**content, "train": in_updates(train, data)}

    @model_validator(mode="after")
    def _rates_from_one_place(self) -> Self:
        chosen = [] if self.methods == "all" else self.methods
        own = [choice.name for choice in chosen if choice.lr is not None]
        if self.grid and self.rates:
            raise ValueError("a study has a 'grid' or tuned 'rates', not both")
        if self.rates and own:
            raise ValueError(f"with tuned 'rates', {own[0]} cannot have an 'lr' of its own")
        return self


class SuiteFile(Strict):
    """``suites/<name>.yaml``: studies, and whether they are too small to conclude from.

    ``steps`` is the breadth of `experiments.memory_steps`; ``gradients``: what is measured.
    """

    description: str
    smoke: bool = False
    steps: Literal["least", "less", "all"] = "all"
    gradients: GradientsSpec | None = None
    studies: Annotated[list[Study], Field(min_length=1)]


def names(folder: str) -> list[str]:
    """Names of the YAML files in one of the folders beside this file."""
    return sorted(path.stem for path in (HOME / folder).glob("*.yaml"))


@cache
def _read(kind: type[Strict], folder: str, name: str) -> Any:
    if name not in names(folder):
        raise UserError(f"unknown {folder.rstrip('s')} {name!r}{nearest(name, names(folder))}")
    return spec.load(kind, HOME / folder / f"{name}.yaml")


def model_spec(name: str) -> ModelSpec:
    """The model of ``models/<name>.yaml``, its shape written out."""
    content = spec.to_plain(_read(ModelFile, "models", name))
    del content["resources"]
    if "network" in content:
        content["shape"] = content.pop("network")
    elif "shape" in content:
        shape = content["shape"]
        if shape not in shapes():
            raise UserError(
                f"models/{name}.yaml: unknown shape {shape!r}{nearest(shape, shapes())}"
            )
        content["shape"] = shapes()[shape]["config"]
    return spec.parse(ModelSpec, {"name": name, **content}, f"models/{name}.yaml")


def _kind(task: str) -> str:
    return str(_read(TaskFile, "tasks", task).task)


def _method_file(name: str) -> MethodFile:
    file: MethodFile = _read(MethodFile, "methods", name)
    file.check_keys(names("models"), names("tasks"), f"methods/{name}.yaml")
    return file


def method_spec(choice: MethodChoice, model: str, task: str) -> MethodSpec:
    """A method's hyperparameters for a model and task: file, their entry, study's override."""
    file = _method_file(choice.name)
    entry = file.entry(model, task, _kind(task))
    if entry is None and choice.lr is None:
        raise UserError(
            f"methods/{choice.name}.yaml has no learning rate for the model {model!r}"
            f"{nearest(model, file.models)} (or give 'lr' in the study)"
        )
    args = {**file.args, **(entry.args if entry else {}), **choice.args}
    lr = choice.lr if choice.lr is not None else entry.lr  # type: ignore[union-attr]
    return MethodSpec(name=choice.name, lr=lr, args=args)


def choices(study: Study, models: list[str]) -> list[MethodChoice]:
    """The study's methods; ``all`` written out for these models, in the order of the catalog."""
    if study.methods != "all":
        return study.methods
    from memopt.catalog import METHODS  # with torch, which takes a second or two

    files = {name: _method_file(name) for name in names("methods")}
    kind = _kind(study.task)
    return [
        MethodChoice(name=name)
        for name, method in METHODS.items()
        if method.kind != "distributed"  # they need several processes
        if name in files and all(files[name].entry(model, study.task, kind) for model in models)
    ]


def rates(study: Study, choice: MethodChoice, model: str) -> list[MethodChoice]:
    """The method at each learning rate that the study asks for: one, or those of its grid."""
    if study.rates:
        tuned: TunedFile = _read(TunedFile, "tuned", study.rates)
        if choice.name not in tuned.methods:
            raise UserError(
                f"tuned/{study.rates}.yaml has no rate for {choice.name}"
                f"{nearest(choice.name, tuned.methods)}: tune it as well"
            )
        return [choice.model_copy(update={"lr": tuned.methods[choice.name].lr})]
    if study.grid:
        base = method_spec(choice, model, study.task).lr
        factors = sorted(study.grid)
        return [choice.model_copy(update={"lr": float(f"{base * f:.4g}")}) for f in factors]
    return [choice]


def _data(study: Study, task: TaskFile, model: ModelSpec, where: str) -> spec.DataSpec:
    """The study's data; fills in what the model and the training decide."""
    content = {**task.data, **study.data}
    if task.task == "pretrain":
        content.setdefault("sequence_length", study.train.sequence_length)
        tokenizer = content.get("tokenizer")
        if (
            isinstance(tokenizer, dict)
            and tokenizer.get("kind") in ("bpe", "unigram")
            and model.shape
        ):
            content["tokenizer"] = {"vocab_size": model.shape.get("vocab_size"), **tokenizer}
    return spec.parse(spec.DataSpec, content, where)


def _instruct(study: Study, task: TaskFile) -> dict[str, Any] | None:
    """The study's ``instruct``; the specification of the run says whether there may be one."""
    if study.instruct is None and task.instruct is None:
        return None
    return {**(task.instruct or {}), **(study.instruct or {})}


def breadth(suite: str) -> str:
    """How much of `experiments.memory_steps` a suite computes."""
    return str(_read(SuiteFile, "suites", suite).steps)


def expand(suite: str) -> list[RunSpec]:
    """All runs of a suite, in the order of its file.

    Raises:
        UserError: an unknown name or key, a value out of range, the same run twice.
    """
    file: SuiteFile = _read(SuiteFile, "suites", suite)
    runs: dict[str, RunSpec] = {}
    for study in file.studies:
        where = f"suites/{suite}.yaml: study {study.id}"
        origins = [_origin(model, runs.values(), where) for model in study.models]
        models = [model.name for model, _ in origins]
        if len(set(models)) < len(models):
            raise UserError(f"{where}: two models are called {max(models, key=models.count)!r}")
        methods = choices(study, models)
        for origin, choice, seeds in itertools.product(origins, methods, study.seeds):
            for at_rate in rates(study, choice, origin[0].name):
                run = _run(suite, file.smoke, study, origin, at_rate, seeds, where)
                check_arguments(run, where)
                check_score(run, where)
                if run.run_id in runs:
                    raise UserError(f"{where}: the run {run.run_id} is listed twice")
                runs[run.run_id] = run
    return list(runs.values())


def _origin(
    choice: ModelChoice, above: Iterable[RunSpec], where: str
) -> tuple[ModelSpec, Resources]:
    """A model of a study, and what running it takes."""
    if choice.run is None:
        name = str(choice.name)
        return model_spec(name), _read(ModelFile, "models", name).resources
    start = starts.find(choice.run, above, where)
    if choice.name in set(names("models")) - {start.model.name}:
        raise UserError(f"{where}: {choice.name!r} is another model (models/{choice.name}.yaml)")
    return ModelSpec(name=choice.name or start.model.name, run=start.run_id), start.resources


def _run(
    suite: str,
    smoke: bool,
    study: Study,
    origin: tuple[ModelSpec, Resources],
    choice: MethodChoice,
    seeds: Seeds,
    where: str,
) -> RunSpec:
    """One run of a study, every name resolved."""
    task: TaskFile = _read(TaskFile, "tasks", study.task)
    model, resources = origin
    return spec.parse(
        RunSpec,
        {
            "task": task.task,
            "study": study.id,
            "suite": suite,
            "smoke": smoke,
            "tuning": study.grid is not None,
            "model": model,
            "method": method_spec(choice, model.name, study.task),
            "data": _data(study, task, model, f"{where}: data"),
            "train": study.train,
            "score": task.score,
            "instruct": _instruct(study, task),
            "seeds": seeds,
            "threads": study.threads,
            "resources": study.resources or resources,
        },
        where,
    )


def select(runs: list[RunSpec], only: str) -> list[RunSpec]:
    """Runs whose ``study/model/method/seed`` or identifier contains ``only``."""
    paths = {run.run_id: starts.path_of(run) for run in runs}
    chosen = [run for run in runs if only in paths[run.run_id] or only in run.run_id]
    if not chosen:
        examples = ", ".join(sorted(set(paths.values()))[:5])
        raise UserError(f"no run of the suite matches {only!r}; runs look like {examples}")
    return chosen


def write(suite: str, runs: list[RunSpec], out: Path) -> dict[str, Any]:
    """Writes ``runs/<run_id>.yaml`` and ``datasets/<data_id>.yaml`` where their content changed.

    Returns:
        What the workflow plans with: ``suite``, ``runs``, ``gradients``, ``datasets``
        (``missing``: what must be put in place first).
    """
    datasets = {run.data.data_id: run.data for run in runs}
    probe = _read(SuiteFile, "suites", suite).gradients
    for data_id, data in datasets.items():
        write_if_changed(out / "datasets" / f"{data_id}.yaml", spec.to_yaml(data))
    for run in runs:
        write_if_changed(out / "runs" / f"{run.run_id}.yaml", spec.to_yaml(run))
    return {
        "suite": suite,
        "runs": [
            {
                "run_id": run.run_id,
                "task": run.task,
                "tuning": run.tuning,
                "study": run.study,
                "model": run.model.name,
                "method": run.method.name,
                "data_id": run.data.data_id,
                "threads": run.threads,
                **run.resources.model_dump(),
                "needs": [run.model.run] if run.model.run else [],
            }
            for run in runs
        ],
        "gradients": probe.plan(expand(suite), f"suites/{suite}.yaml") if probe else {},
        "datasets": [
            {"data_id": name, "missing": missing(data)} for name, data in datasets.items()
        ],
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.suites", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("expand", help="write one YAML file a run, print the plan")
    command.add_argument("suite", help="a file of experiments/suites, without .yaml")
    command.add_argument("--out", type=Path, required=True, metavar="DIR")
    command.add_argument("--only", default="", metavar="SUBSTRING", help="e.g. llama_60m/gwt")
    arguments = parser.parse_args()
    runs = select(expand(arguments.suite), arguments.only)
    print(json.dumps(write(arguments.suite, runs, arguments.out), indent=1))


if __name__ == "__main__":
    command_line(_main)
