"""One look for every figure: a fixed colour, marker and line style per method.

A method looks the same in every figure of the repository, so the mapping is by catalog name and
never by the order in which methods happen to appear. Colours of the seven methods of the four
papers are at least ``CORE_DISTANCE`` apart (CIELAB) for normal vision and under simulated
protanopia, deuteranopia and tritanopia; all methods differ by marker and line style too, so a
black-and-white print can still be read.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import seaborn as sns

from .errors import FigureError

CORE = ("adamw", "gwt", "coap", "galore", "adama", "lomo", "adalomo")
CORE_DISTANCE = 20.0

SOLID: tuple[int, tuple[float, ...]] = (0, ())
DASHED = (0, (5.0, 1.6))
DOTTED = (0, (1.2, 1.2))
DASHDOT = (0, (5.0, 1.4, 1.2, 1.4))

INK = "#22262B"
MUTED = "#6B7280"
GRID = "#E6E8EB"
WEIGHTS = "#C9CED6"
SMOKE = "#9A5B00"


@dataclass(frozen=True)
class Look:
    """How one method is drawn: legend label, colour, marker and line style."""

    label: str
    color: str
    marker: str
    dash: tuple[float, tuple[float, ...]]


# Row order is the order of legends and tables where nothing else decides it.
LOOKS: dict[str, Look] = {
    "adamw": Look("AdamW", "#2A2F36", "o", SOLID),
    "gwt": Look("GWT", "#2460C8", "s", SOLID),
    "coap": Look("COAP", "#DB3F2F", "^", SOLID),
    "galore": Look("GaLore", "#F2A834", "D", DASHDOT),
    "adama": Look("AdamA", "#2A9D70", "v", DASHED),
    "lomo": Look("LOMO", "#A33592", "X", SOLID),
    "adalomo": Look("AdaLomo", "#5BCBF0", "P", SOLID),
    "adam8bit": Look("8-bit Adam", "#9FB095", "o", DASHED),
    "adafactor": Look("Adafactor", "#00A2A6", "v", SOLID),
    "adam_mini": Look("Adam-mini", "#6C6246", "o", DOTTED),
    "adams": Look("AdamS", "#8E6783", "o", DASHDOT),
    "lion": Look("Lion", "#C28553", "X", DASHED),
    "muon": Look("Muon", "#496A02", "P", DASHED),
    "sgd": Look("SGD", "#BE8DF6", "X", DOTTED),
    "sm3": Look("SM3", "#C5D07A", "v", DOTTED),
    "came": Look("CAME", "#69E59A", "v", DASHDOT),
    "foam": Look("FOAM", "#5088C4", "s", DASHED),
    "fira": Look("Fira", "#DB7327", "D", DASHED),
    "apollo": Look("APOLLO", "#6F2A18", "^", DASHED),
    "apollo_mini": Look("APOLLO-Mini", "#DE6A70", "^", DOTTED),
    "flora": Look("Flora", "#F184C0", "^", DASHDOT),
    "rso": Look("RSO", "#FAB5BB", "D", SOLID),
    "lora": Look("LoRA", "#55336C", "s", DOTTED),
    "relora": Look("ReLoRA", "#922958", "s", DASHDOT),
    "lora_pre": Look("LoRA-Pre", "#4F2B91", "D", DOTTED),
    "zero1_adamw": Look("ZeRO-1 AdamW", "#7F868F", "P", DOTTED),
}


# GWT at level 0: neither wavelet nor saving, so it is named after what it is.
CONTROL = "Adam, two rates"
CONTROL_LOOK = Look(CONTROL, "#7FB800", "p", DASHED)


def look(method: str, label: str = "") -> Look:
    """Return the look of ``method`` (its catalog name); of the control, known by its ``label``.

    Raises:
        FigureError: the method has no row in ``LOOKS``; the message names the nearest one.
    """
    if label == CONTROL:
        return CONTROL_LOOK
    if method in LOOKS:
        return LOOKS[method]
    near = difflib.get_close_matches(method, LOOKS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise FigureError(
        f"method {method!r} has no look.{hint} Add a row for it to LOOKS in figlib/style.py: "
        "a colour, a marker and a line style that no other method has."
    )


def order(method: str) -> int:
    """Position of ``method`` in legends and tables."""
    look(method)
    return list(LOOKS).index(method)


def use() -> None:
    """Apply the style to matplotlib; every notebook calls this once."""
    sns.set_theme(
        context="paper",
        style="ticks",
        rc={
            "font.family": "DejaVu Sans",  # ships with matplotlib: the same glyphs everywhere
            "font.size": 8.5,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": "#9AA1AB",
            "axes.linewidth": 0.8,
            "axes.labelsize": 8.5,
            "axes.titlesize": 9.0,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlepad": 8.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.7,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.labelsize": 8.0,
            "ytick.labelsize": 8.0,
            "xtick.major.size": 3.0,
            "ytick.major.size": 3.0,
            "xtick.major.width": 0.8,
            "ytick.major.width": 0.8,
            "xtick.minor.size": 0.0,
            "ytick.minor.size": 0.0,
            "lines.linewidth": 1.6,
            "lines.markersize": 5.0,
            "legend.frameon": False,
            "legend.fontsize": 8.0,
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "savefig.dpi": 220,
            "pdf.fonttype": 42,  # text stays text in a paper's PDF
            "svg.hashsalt": "memopt",  # the same figure gives the same bytes
        },
    )
    mpl.rcParams["axes.formatter.useoffset"] = False


def digits(value: float, count: int) -> str:
    """``value`` with ``count`` significant digits, zeros included: 2.50, 173."""
    return f"{value:#.{count}g}".rstrip(".")


def readable(color: str) -> str:
    """``color``, darkened until text in it has a contrast of 4.5 on white (WCAG AA)."""
    rgb = np.array(mpl.colors.to_rgb(color))
    while 1.05 / (_luminance(rgb) + 0.05) < 4.5:
        rgb = rgb * 0.95
    return mpl.colors.to_hex(rgb)


def _luminance(rgb: np.ndarray) -> float:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
