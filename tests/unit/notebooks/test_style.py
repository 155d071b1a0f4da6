"""Looks are fixed, unique, and far enough apart for colour-blind readers."""

import itertools

import numpy as np
import pytest
from figlib import style
from figlib.errors import FigureError

from memopt import catalog

# Simulation of dichromacy, severity 1.0, on linear RGB: Machado, Oliveira and Fernandes,
# "A Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG 15 (2009).
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
RGB_TO_XYZ = np.array(  # sRGB, D65 (IEC 61966-2-1)
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = RGB_TO_XYZ.sum(axis=1)


def linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(color: str, vision: str) -> np.ndarray:
    """CIELAB (CIE 1976) of a colour as seen with ``vision``."""
    xyz = RGB_TO_XYZ @ np.clip(VISIONS[vision] @ linear(color), 0, 1) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_lab_of_known_colors() -> None:
    """Textbook values, so that the distances below mean what they say."""
    assert lab("#FFFFFF", "normal") == pytest.approx([100, 0, 0], abs=0.01)
    assert lab("#FF0000", "normal") == pytest.approx([53.24, 80.09, 67.20], abs=0.05)


@pytest.mark.parametrize("vision", VISIONS)
def test_core_methods_are_apart_for_every_vision(vision: str) -> None:
    seen = {m: lab(style.look(m).color, vision) for m in style.CORE}
    for a, b in itertools.combinations(style.CORE, 2):
        distance = float(np.linalg.norm(seen[a] - seen[b]))
        assert distance >= style.CORE_DISTANCE, f"{a} and {b} under {vision}: {distance:.1f}"


def test_every_method_differs_by_color_and_by_shape() -> None:
    looks = list(style.LOOKS.values())
    assert len({k.color for k in looks}) == len(looks)
    assert len({k.label for k in looks}) == len(looks)
    assert len({(k.marker, k.dash) for k in looks}) == len(looks), "black-and-white prints"
    for a, b in itertools.combinations(looks, 2):
        distance = np.linalg.norm(lab(a.color, "normal") - lab(b.color, "normal"))
        assert distance > 10, (a.label, b.label, distance)  # 2.3 is just noticeable


def test_every_catalog_method_has_its_look() -> None:
    for name, method in catalog.METHODS.items():
        assert style.look(name).label == method.title


def test_unknown_method_names_the_nearest_one() -> None:
    with pytest.raises(FigureError, match=r"'adalom' has no look.*'adalomo'.*style\.py"):
        style.look("adalom")


@pytest.mark.parametrize("method", style.LOOKS)
def test_label_text_is_readable_on_white(method: str) -> None:
    """Contrast ratio of WCAG 2.1: (1.05) / (luminance + 0.05) >= 4.5."""
    text = style.readable(style.look(method).color)
    luminance = (RGB_TO_XYZ @ linear(text))[1]
    assert 1.05 / (luminance + 0.05) >= 4.45  # 8-bit rounding of the hexadecimal colour
