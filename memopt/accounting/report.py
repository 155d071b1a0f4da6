"""The report of predicted or measured bytes, its arithmetic and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memopt.accounting.units import PARTS, Convention, convert, table_unit

if TYPE_CHECKING:
    from rich.table import Table

Probe = Callable[[], Iterable[tuple[str, tuple[int, ...], int]]]
LABELS = ("treated", "other", "frozen")


@dataclass(frozen=True)
class GroupBytes:
    """Bytes of one parameter group.

    Attributes:
        name: one of `LABELS`: ``"treated"`` by the method's own algorithm, ``"other"`` (plain
            Adam beside it), or ``"frozen"`` (no gradient, or not given to the optimizer).
        tensors: number of distinct parameters.
        elements: number of weights in them.
        weights: bytes of the weights.
        gradients: bytes of gradients that live at once within this group.
        states: bytes of optimizer state without projections: moments, scales, master copy.
        projections: bytes of projection matrices.
    """

    name: str
    tensors: int = 0
    elements: int = 0
    weights: int = 0
    gradients: int = 0
    states: int = 0
    projections: int = 0

    @classmethod
    def total(cls, name: str, parameters: Iterable[GroupBytes], *, released: bool) -> GroupBytes:
        """One row for many parameters; gradients released one at a time do not add up."""
        rows = list(parameters)
        sums = {
            key.name: sum(getattr(row, key.name) for row in rows)
            for key in fields(cls)
            if key.name != "name"
        }
        if released:
            sums["gradients"] = max((row.gradients for row in rows), default=0)
        return cls(name, **sums)


@dataclass(frozen=True)
class Report:
    """Bytes that training one model with one optimizer holds between and during updates.

    Activations are not in it, nor module buffers (see docs/memory.md). `total` is what stays from
    step to step, and the gradients; `transient` comes on top of it for the moment of an update.

    Attributes:
        source: ``"predicted"`` or ``"measured"``.
        model: name or class of the model.
        method: catalog name or class of the optimizer.
        dtype: precision of weights and gradients.
        arguments: the method's arguments, as given.
        gradients: bytes of gradients that live at once.
        gradient_rule: in words, which gradients those are.
        groups: the same bytes for each parameter group.
        tensors: bytes of optimizer state by the name of the state tensor.
        probe: finds `updates`; None where they are unknown (measured reports).
    """

    source: str
    model: str
    method: str
    dtype: str
    arguments: dict[str, Any]
    gradients: int
    gradient_rule: str
    groups: tuple[GroupBytes, ...]
    tensors: dict[str, int] = field(default_factory=dict)
    probe: Probe | None = field(default=None, repr=False, compare=False)

    @cached_property
    def updates(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """Group, shape and largest transient of each parameter's update; found at first use."""
        return tuple(self.probe()) if self.probe else ()

    @property
    def transients(self) -> dict[str, int]:
        """Largest transient of one parameter's update, in each group."""
        largest: dict[str, int] = {}
        for label, _, nbytes in self.updates:
            largest[label] = max(largest.get(label, 0), nbytes)
        return largest

    @property
    def transient(self) -> int | None:
        """Largest transient of ``step()`` in bytes; None in a measured report.

        Parameters are updated one after another, so that it is the largest single one.
        """
        return max(self.transients.values(), default=None)

    @property
    def elements(self) -> int:
        """Number of weights of the model."""
        return sum(group.elements for group in self.groups)

    @property
    def weights(self) -> int:
        """Bytes of the weights in the precision of the forward pass."""
        return sum(group.weights for group in self.groups)

    @property
    def states(self) -> int:
        """Bytes of moments, scales and master copies; projections are apart."""
        return sum(group.states for group in self.groups)

    @property
    def projections(self) -> int:
        """Bytes of projection matrices."""
        return sum(group.projections for group in self.groups)

    @property
    def total(self) -> int:
        """Weights, gradients, states and projections: what training keeps.

        Not in it: `transient`, which an update needs for a moment on top (``total + transient`` is
        the most without activations), and activations. The peak of a whole step is
        `memopt.accounting.step`'s ``.peak``.
        """
        return self.weights + self.gradients + self.states + self.projections

    def counted(self, convention: Convention, part: str | None = None) -> int:
        """The bytes that a paper's convention counts of this report.

        Args:
            convention: what is counted.
            part: one of `PARTS` instead of the convention's sum.
        """
        parts = (part,) if part else convention.counts
        counted = sum(getattr(self, name) for name in parts)
        if not convention.scales and "states" in parts:
            counted -= sum(n for key, n in self.tensors.items() if key.endswith("_absmax"))
        return int(counted)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, totals included; ready for JSON."""
        names = ("elements", *PARTS, "total", "transient", "transients")
        plain = asdict(replace(self, probe=None))
        del plain["probe"]
        return plain | {name: getattr(self, name) for name in names}

    def __rich__(self) -> Table:
        """The report as a rich table: one row a group, one column a part."""
        from rich.table import Table

        unit = table_unit(self.total)
        table = Table(
            title=f"{self.model} · {self.method} · {self.dtype} ({self.source}), {unit}",
            caption=f"gradients: {self.gradient_rule}",
        )
        table.add_column("group")
        for heading in ("M weights", *PARTS, "total"):
            table.add_column(heading, justify="right")
        for group in self.groups:
            row = [getattr(group, part) for part in PARTS]
            figures = [f"{convert(value, unit):,.3f}" for value in (*row, sum(row))]
            table.add_row(group.name, f"{group.elements / 1e6:,.2f}", *figures)
        table.add_section()
        totals = [getattr(self, part) for part in (*PARTS, "total")]
        figures = [f"{convert(value, unit):,.3f}" for value in totals]
        table.add_row("all", f"{self.elements / 1e6:,.2f}", *figures, style="bold")
        return table
