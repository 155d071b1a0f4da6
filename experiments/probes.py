"""Which runs of a suite have their gradients measured (`experiments.gradients`), and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from experiments.errors import UserError, nearest
from experiments.spec import RunSpec, Strict
from experiments.starts import path_of


class GradientsSpec(Strict):
    """The key ``gradients`` of a suite.

    Attributes:
        runs: ``study/model/method/seed``; all of them pretrain.
        steps: updates at which to measure, from 1 on.
    """

    runs: Annotated[list[str], Field(min_length=1)]
    steps: Annotated[list[PositiveInt], Field(min_length=1)]

    def plan(self, runs: Iterable[RunSpec], where: str) -> dict[str, Any]:
        """What the workflow needs: identifiers of the runs, and the updates.

        Raises:
            UserError: no run of the suite is called so, or several are.
        """
        paths = {run.run_id: path_of(run) for run in runs}
        found = []
        for path in self.runs:
            ids = [run_id for run_id, own in paths.items() if own == path]
            if len(ids) != 1:
                hint = nearest(path, paths.values()) if not ids else ""
                raise UserError(
                    f"{where}: gradients: {path!r} names {len(ids)} runs of the suite, expected one"
                    f"{hint}"
                )
            found += ids
        return {"runs": found, "steps": self.steps}
