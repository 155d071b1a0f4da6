"""Units, and the papers' ways of counting memory.

The field prints "GB" for two different units and leaves different parts out. Each way has a name
here, so that a number can be compared with a printed one without guessing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memopt.errors import unknown

UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PARTS = ("weights", "gradients", "states", "projections")


def convert(nbytes: float, unit: str) -> float:
    """Bytes in a unit of `UNITS`: ``GB`` is 10**9 bytes, ``GiB`` 2**30."""
    if unit not in UNITS:
        raise unknown("unit", unit, UNITS)
    return nbytes / UNITS[unit]


def parse(text: str) -> int:
    """``24GB`` or ``24 GiB`` in bytes.

    Raises:
        ValueError: no number and unit of `UNITS`.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if not found:
        raise ValueError(f"memory is {text!r}; expected a number and a unit, such as 24GB")
    number, unit = found.groups()
    if unit not in UNITS:
        raise unknown("unit", unit, UNITS)
    return int(float(number) * UNITS[unit])


def table_unit(nbytes: float) -> str:
    """The largest binary unit in which a table's largest figure is at least 1."""
    return next((unit for unit in ("GiB", "MiB", "KiB") if nbytes >= UNITS[unit]), "B")


def decimal(nbytes: float) -> str:
    """Bytes in GB or MB of 10**9 and 10**6 bytes, four digits."""
    unit = "GB" if nbytes >= UNITS["GB"] else "MB"
    return f"{convert(nbytes, unit):.4g} {unit}"


@dataclass(frozen=True)
class Convention:
    """What a paper's memory column counts.

    Attributes:
        name: key in `CONVENTIONS`.
        counts: the parts that are summed, out of `PARTS`.
        unit: unit of the printed figure, a key of `UNITS`. Papers write "GB" for GiB as well.
        dtype: precision of weights and gradients that the paper assumes.
        storage: precision of the optimizer's moments and projections.
        scales: whether the scale factors of 8-bit blocks are counted.
        why: how the convention is known.
    """

    name: str
    counts: tuple[str, ...]
    unit: str
    dtype: str
    storage: str
    scales: bool
    why: str


CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention(
            name="galore",
            counts=("weights", "states", "projections"),
            unit="GB",
            dtype="bfloat16",
            storage="bfloat16",
            scales=True,
            why="weights and optimizer states in bf16, no gradients (GaLore's table of "
            "pre-training; how its figures were computed was asked in its issue 67, unanswered)",
        ),
        Convention(
            name="gwt",
            counts=("weights", "states", "projections"),
            unit="GB",
            dtype="bfloat16",
            storage="bfloat16",
            scales=True,
            why="GaLore's column in 10**9 bytes; the bars of the same laboratory's FOAM agree",
        ),
        Convention(
            name="fira",
            counts=PARTS,
            unit="GB",
            dtype="bfloat16",
            storage="bfloat16",
            scales=True,
            why="GaLore's column with the gradients: its full-rank figures are 8 bytes a weight",
        ),
        Convention(
            name="coap",
            counts=("states", "projections"),
            unit="GiB",
            dtype="bfloat16",
            storage="bfloat16",
            scales=False,
            why="optimizer states alone, 2**30 bytes printed as GB; its code counts neither the "
            "scales of 8-bit blocks nor the gradient buffer of the projection",
        ),
        Convention(
            name="lomo",
            counts=PARTS,
            unit="GiB",
            dtype="mixed",
            storage="float32",
            scales=True,
            why="each part by itself, 2**30 bytes printed as GB; AdamW with a float32 master copy "
            "and moments (12 bytes a weight), LOMO on 16-bit weights alone",
        ),
        Convention(
            name="adama",
            counts=PARTS,
            unit="GB",
            dtype="float32",
            storage="float32",
            scales=True,
            why="weights, gradients and states in float32 (16 bytes a weight for Adam, 12 for "
            "AdamA): only so does the abstract's 'up to 23 %' stay below its bound of 25 %",
        ),
    )
}


def convention(name: str) -> Convention:
    """The convention of a name; a ``ValueError`` with the nearest one otherwise."""
    if name not in CONVENTIONS:
        raise unknown("convention", name, CONVENTIONS)
    return CONVENTIONS[name]
