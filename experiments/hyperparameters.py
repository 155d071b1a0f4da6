"""The files of methods (``methods/<name>.yaml``): which numbers a method takes, and where from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_args

from pydantic import Field, StringConstraints

from experiments.errors import UserError, nearest
from experiments.spec import Name, RunSpec, Strict

KINDS = get_args(RunSpec.model_fields["task"].annotation)  # of tasks
Key = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.-]+(/[a-z0-9_.-]+)?$")]


class Hyperparameters(Strict):
    """What a method uses for one model, and where the numbers come from."""

    lr: Annotated[float, Field(gt=0)]
    args: dict[str, Any] = {}
    source: str


class MethodFile(Strict):
    """``methods/<name>.yaml``: hyperparameters of one method of the catalog.

    Attributes:
        args: for every model, unless the model's entry says otherwise.
        source: of ``args``.
        models: per ``model``, or per ``model/task`` where a task needs its own: a file of
            ``tasks``, or a kind of task (``finetune``). The most exact entry counts, and it alone.
    """

    args: dict[str, Any] = {}
    source: str
    models: dict[Key, Hyperparameters]

    def entry(self, model: str, task: str, kind: str) -> Hyperparameters | None:
        """The entry of ``model/task``, else of ``model/kind``, else of ``model``."""
        keys = (f"{model}/{task}", f"{model}/{kind}", model)
        return next((self.models[key] for key in keys if key in self.models), None)

    def check_keys(self, models: Sequence[str], tasks: Sequence[str], where: str) -> None:
        """Refuses a misspelt ``model/task``, for which a less exact entry would be used.

        Raises:
            UserError: no such task; or no such model, neither a file nor another key here.
        """
        tasks = [*tasks, *KINDS]
        models = [*models, *(key for key in self.models if "/" not in key)]
        for key in self.models:
            model, slash, task = key.partition("/")
            if slash and model not in models:
                raise UserError(f"{where}: models: {key!r}: no such model{nearest(model, models)}")
            if slash and task not in tasks:
                raise UserError(f"{where}: models: {key!r}: no such task{nearest(task, tasks)}")


class MethodChoice(Strict):
    """A method of a study; ``lr`` and ``args`` override the method's file."""

    name: Name
    lr: Annotated[float, Field(gt=0)] | None = None
    args: dict[str, Any] = {}


def check_arguments(run: RunSpec, where: str) -> None:
    """Names a method's argument that its optimizer does not take, before any data is prepared."""
    from memopt import catalog  # with torch, which takes a second or two

    known = catalog.get(run.method.name).arguments()
    for argument in run.method.args:
        if argument not in known:
            raise UserError(
                f"{where}: method {run.method.name} takes no {argument!r}{nearest(argument, known)}"
            )
