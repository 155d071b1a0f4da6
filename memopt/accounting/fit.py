"""Does it fit: the peak of a whole step, and the largest batch for a given memory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

from torch import nn

from memopt import catalog
from memopt.accounting import shapes
from memopt.accounting.course import Course, Release, follow
from memopt.accounting.predict import ANY_LR, predict
from memopt.accounting.real import Workload
from memopt.accounting.report import Report
from memopt.errors import UnsupportedCombination

_RELEASES: dict[str, Release] = {"in backward": "last", "accumulated": "always"}


@dataclass(frozen=True)
class Step:
    """A method's bytes over a whole step: forward, backward and update.

    Attributes:
        report: weights, gradients, states and the update's transient.
        workload: batch and how it is run.
        release: which gradients are dropped as they come.
        adapter: for methods that change the model: targets and arguments, as JSON.
    """

    report: Report
    workload: Workload
    release: Release
    adapter: str | None = None

    @cached_property
    def course(self) -> Course:
        """What lives in forward and backward beside weights and states."""
        adapter = None if self.adapter is None else (self.report.method, self.adapter)
        return _course(self.workload, self.report.dtype, self.release, adapter)

    @property
    def activations(self) -> int:
        """The most bytes at once of activations, temporaries of backward, and the batch."""
        return self.course.activations

    @property
    def peak(self) -> int:
        """The most bytes that live at once in a step; allocator and framework not counted."""
        return max(self.moments)

    @cached_property
    def moments(self) -> list[int]:
        """Bytes at every moment of the step that could be its highest, in one order."""
        report, live = self.report, self.course.live
        kept = report.weights + report.states + report.projections + self.course.buffers
        needs = {shape: nbytes for _, shape, nbytes in report.updates}
        moments = [kept + nbytes for nbytes in live]
        moments += [kept + live[at] + needs.get(shape, 0) for at, shape in self.course.arrivals]
        if not self.course.arrivals:  # the update comes after backward
            moments.append(kept + live[-1] + (report.transient or 0))
        return moments

    def with_batch(self, batch: int) -> Step:
        """The same step with another micro-batch."""
        return replace(self, workload=replace(self.workload, batch=batch))

    @cached_property
    def lines(self) -> list[tuple[int, int]]:
        """For each moment the bytes without any sequence, and those that each one adds.

        Bytes are linear in the batch at every moment, so that passes with two batches tell all
        others. A single sequence is no good base: some models treat it apart.

        Raises:
            UnsupportedCombination: the model runs other operations for another batch.
        """
        batch = max(self.workload.batch, 2)
        narrow, wide = (self.with_batch(count).moments for count in (batch, batch + 1))
        if len(narrow) != len(wide):
            raise UnsupportedCombination(
                f"the model runs other operations with batch {batch} than with {batch + 1}: its "
                "memory is not linear in the batch"
            )
        pairs = zip(narrow, wide, strict=True)
        return [(here - (there - here) * batch, there - here) for here, there in pairs]

    def peak_at(self, batch: int) -> int:
        """The peak with another micro-batch, from `lines`."""
        return max(fixed + slope * batch for fixed, slope in self.lines)

    def largest_batch(self, memory: int) -> int:
        """The largest micro-batch whose peak is within ``memory`` bytes; 0 if none is."""
        if any(fixed > memory for fixed, _ in self.lines):
            return 0
        return min((memory - fixed) // slope for fixed, slope in self.lines if slope > 0)

    def to_dict(self) -> dict[str, Any]:
        """The report's numbers, the workload's, and the peak; ready for JSON."""
        work = {key: value for key, value in asdict(self.workload).items() if key != "config"}
        return self.report.to_dict() | work | {"activations": self.activations, "peak": self.peak}


def step(
    model: Any,
    method: str,
    dtype: str = "float32",
    *,
    batch: int,
    seq: int,
    micro_batches: int = 1,
    checkpointing: bool = False,
    attention: str = "sdpa",
    in_backward: bool = False,
    targets: Any = "auto",
    **arguments: Any,
) -> Step:
    """The bytes of one whole step.

    Activations come from a pass of the real model on tensors without memory (some ten seconds for
    7B); methods that release the same gradients share it.

    Args:
        model: a shape's name, or a Hugging Face configuration (path, mapping, object).
        method: catalog name of the optimizer.
        dtype: as in `memopt.accounting.predict`.
        batch: sequences in a micro-batch.
        seq: tokens in a sequence.
        micro_batches: forward and backward passes in one step.
        checkpointing: recompute the activations of each block in backward.
        attention: ``"sdpa"`` or ``"eager"``.
        in_backward: update under `memopt.update_in_backward`, whatever the method.
        targets: as in `memopt.param_groups`.
        **arguments: of the method's constructor.

    Raises:
        ValueError: as `predict`; a batch that cannot be built.
        UnsupportedCombination: transformers is not there, or the model cannot be followed.
    """
    entry = catalog.get(method)
    if entry.timing == "in backward":
        arguments = {"micro_batches": micro_batches} | arguments
    config = json.dumps(shapes.fields_of(model), sort_keys=True)
    workload = Workload(config, batch, seq, micro_batches, checkpointing, attention)
    alone = in_backward and micro_batches == 1  # more must be held until the last
    report = predict(model, method, dtype, targets=targets, in_backward=alone, **arguments)
    release = "last" if in_backward else _RELEASES.get(entry.timing, "never")
    adapter = json.dumps([targets, arguments]) if entry.kind == "adapter" else None
    return Step(report, workload, release, adapter)


@cache
def _course(
    workload: Workload, dtype: str, release: Release, adapter: tuple[str, str] | None
) -> Course:
    """One pass; kept, as it serves all methods that release the same gradients."""
    if adapter is None:
        return follow(workload, dtype, release)

    def adapt(model: nn.Module) -> Any:
        method, (targets, arguments) = adapter[0], json.loads(adapter[1])
        return catalog.create(method, model, targets=targets, lr=ANY_LR, **arguments)

    return follow(workload, dtype, release, adapt)
