"""Periodic wavelet transforms of the rows of a matrix, with PyWavelets' filters (GWT).

Boundary rule: the width is padded with zeros to a multiple of 2^L and the signal taken as
periodic (PyWavelets' ``periodization``). Every band then has exactly half the width of the one
above it, reconstruction is exact at every width, and orthogonal wavelets stay orthonormal. (The
official code pads each level with zeros instead; its band widths no longer match the denominator.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv_transpose1d

from memopt.constants import constant
from memopt.errors import unknown
from memopt.subspaces import haar


@dataclass(frozen=True)
class Wavelet:
    """One wavelet at one level, with the three operations that GWT needs.

    Attributes:
        analysis: low-pass and high-pass decomposition filters, (2, 1, f), ready for ``conv1d``.
        synthesis: reconstruction filters, (2, 1, f), ready for ``conv_transpose1d``.
        level: L.
    """

    analysis: Tensor
    synthesis: Tensor
    level: int

    def approximate(self, x: Tensor) -> Tensor:
        """The approximation band, (m, ceil(n / 2^L))."""
        return self.forward(x)[0]

    def spread(self, band: Tensor, width: int) -> Tensor:
        """Inverse of the approximation band with zero details, cut to ``width`` columns."""
        for _ in range(self.level):
            band = self._up(band, torch.zeros_like(band))
        return band[:, :width]

    def inverse(self, band: Tensor, details: list[Tensor], width: int) -> Tensor:
        """Inverse of `forward`, cut to ``width`` columns."""
        for detail in details:
            band = self._up(band, detail)
        return band[:, :width]

    def scaled_details(self, x: Tensor, band: Tensor, divisor: Tensor) -> Tensor:
        """Inverse of zero approximation and details ``D_l / N_l``, cut to the width of ``x``."""
        repeated = divisor.expand_as(band)
        rebuilt = torch.zeros_like(band)
        for detail in self.forward(x)[1]:
            rebuilt = self._up(rebuilt, detail / repeated)
            repeated = repeated.repeat_interleave(2, dim=1)
        return rebuilt[:, : x.shape[1]]

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """``(A_L, [D_L, ..., D_1])`` of the padded rows."""
        band = haar.pad(x, self.level)
        details: list[Tensor] = []
        for _ in range(self.level):
            band, detail = self._down(band)
            details.insert(0, detail)
        return band, details

    def _down(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``A_k = sum_j h_j x[(2k + f/2 - j) mod n]`` and the same for the details."""
        length, width = self.analysis.shape[-1], x.shape[1]
        index = torch.arange(1 - length // 2, width + length // 2 - 1, device=x.device) % width
        filters = self.analysis.to(x)
        bands = conv1d(x[:, index].unsqueeze(1), filters, stride=2)
        return bands[:, 0], bands[:, 1]

    def _up(self, approximation: Tensor, detail: Tensor) -> Tensor:
        """The inverse of `_down`; what hangs over either end is added at the other."""
        bands = torch.stack((approximation, detail), dim=1)
        long = conv_transpose1d(bands, self.synthesis.to(bands), stride=2)[:, 0]
        width, length = 2 * approximation.shape[1], self.synthesis.shape[-1]
        index = torch.arange(1 - length // 2, width + length // 2 - 1, device=long.device) % width
        return long.new_zeros(long.shape[0], width).index_add_(1, index, long)


@dataclass(frozen=True)
class Haar:
    """The same operations for the Haar wavelet, in the fast form of `memopt.subspaces.haar`."""

    level: int

    def approximate(self, x: Tensor) -> Tensor:
        """The approximation band, (m, ceil(n / 2^L))."""
        return haar.approximate(x, self.level)

    def spread(self, band: Tensor, width: int) -> Tensor:
        """Inverse of the approximation band with zero details, cut to ``width`` columns."""
        return haar.spread(band, width, self.level)

    def scaled_details(self, x: Tensor, band: Tensor, divisor: Tensor) -> Tensor:
        """Inverse of zero approximation and details ``D_l / N_l``, cut to the width of ``x``."""
        return haar.scaled_details(x, band, divisor, self.level)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """``(A_L, [D_L, ..., D_1])`` of the padded rows."""
        return haar.forward(x, self.level)

    def inverse(self, band: Tensor, details: list[Tensor], width: int) -> Tensor:
        """Inverse of `forward`, cut to ``width`` columns."""
        return haar.inverse(band, details, width)


@constant
def transform(name: str, level: int) -> Haar | Wavelet:
    """The transform of a wavelet at a level.

    Args:
        name: ``"haar"``, or a discrete wavelet of PyWavelets (``"db2"``, ``"bior1.3"``, ...).
        level: L, 0 or more.

    Raises:
        ValueError: unknown wavelet (with the nearest).
        ImportError: another wavelet than Haar without PyWavelets.
    """
    if name in ("haar", "db1"):
        return Haar(level)
    try:
        import pywt
    except ImportError as error:
        raise ImportError(f"wavelet {name!r} needs PyWavelets: pip install PyWavelets") from error
    if name not in pywt.wavelist(kind="discrete"):
        raise unknown("wavelet", name, pywt.wavelist(kind="discrete"))
    bank = pywt.Wavelet(name)

    def filters(low: list[float], high: list[float], flip: bool) -> Tensor:
        pair = torch.tensor([low, high], dtype=torch.float64).unsqueeze(1)
        return pair.flip(-1) if flip else pair

    # a convolution flips its filter once; conv1d does not, conv_transpose1d does
    analysis = filters(bank.dec_lo, bank.dec_hi, flip=True)
    synthesis = filters(bank.rec_lo, bank.rec_hi, flip=False)
    return Wavelet(analysis, synthesis, level)
