"""8-bit block-wise storage with the dynamic tree code (Dettmers et al., arXiv 2110.02861).

A tensor is cut into blocks of 256 consecutive elements; each block is divided by its largest
magnitude and every element replaced by the nearest of 256 code values. The code is dense near
zero: a leading run of zeros in the byte is a decimal exponent, the rest a linear fraction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from memopt.constants import constant

BLOCK = 256
MINIMUM_ELEMENTS = 4096  # smaller tensors stay in compute precision, as the paper's package does


@constant
def code_values(signed: bool) -> Tensor:
    """The 256 ascending code values on the CPU, float32, largest magnitude 1, with an exact 0.

    Exponent ``e`` (decimal, 0 to -6) has ``2**(6+e)`` signed or ``2**(7+e)`` unsigned fractions:
    midpoints of an even partition of [0.1, 1], times ``10**e``. Zero and one complete the code.
    """
    values = [0.0, 1.0]
    for exponent in range(7):
        fractions = 2 ** (exponent if signed else exponent + 1)
        edges = torch.linspace(0.1, 1.0, fractions + 1, dtype=torch.float64)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (exponent - 6)
        values += middles.tolist()
        if signed:
            values += (-middles).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


@constant
def _tables(signed: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Code values; the upper bound of each code; the lowest code for each half of a float32.

    The upper 16 bits of a float32 name an interval that holds one bound at the most, so that the
    code of a number is the lowest one of its interval, or the next. A search takes ten times as
    long.
    """
    values = code_values(signed).double()
    bounds = torch.cat([(values[1:] + values[:-1]) / 2, torch.tensor([torch.inf]).double()]).float()
    if not signed:
        # a positive second moment must not vanish: m / (0 + eps) can be hundreds of steps long
        bounds[0] = 0.0
    upper = torch.arange(1 << 16, dtype=torch.int32)
    # of a negative number the lowest in its interval is the beginning of the next
    lowest = ((upper + (upper >> 15)) << 16).view(torch.float32)
    guess = torch.bucketize(lowest, bounds).clamp_max(255).to(torch.uint8)
    return code_values(signed).to(device), bounds.to(device), guess.to(device)


@constant
def zero_code(*, signed: bool) -> int:
    """Stored code of exact zero (signed codes are shifted by 128 into int8)."""
    index = int(torch.nonzero(code_values(signed) == 0.0).item())
    return index - 128 if signed else index


def _blocks(flat: Tensor) -> Tensor:
    padding = -flat.numel() % BLOCK
    return torch.nn.functional.pad(flat, (0, padding)).view(-1, BLOCK)


def dequantize(codes: Tensor, absmax: Tensor) -> Tensor:
    """Code and block scales to float32, in the codes' shape."""
    signed = codes.dtype is torch.int8
    index = codes.reshape(-1).int().add_(128 if signed else 0)
    values = _tables(signed, codes.device)[0].index_select(0, index)
    scaled = _blocks(values).mul_(absmax[:, None])
    return scaled.view(-1)[: codes.numel()].view(codes.shape)


def quantize_(value: Tensor, codes: Tensor, absmax: Tensor) -> None:
    """Rounds ``value`` to the nearest code, in place; zero stays exactly zero.

    Args:
        value: float tensor in the shape of ``codes``.
        codes: int8 (signed) or uint8 (unsigned: a positive number never becomes zero), overwritten.
        absmax: float32 block scales, ``ceil(numel / 256)``, overwritten.
    """
    signed = codes.dtype is torch.int8
    blocks = _blocks(value.reshape(-1).float())
    absmax.copy_(blocks.abs().amax(dim=1))
    # a block of zeros has no scale; any divisor keeps it zero
    normal = blocks / torch.where(absmax > 0, absmax, torch.ones_like(absmax))[:, None]
    flat = normal.view(-1)[: codes.numel()]
    _, bounds, guesses = _tables(signed, value.device)
    index = guesses.index_select(0, (flat.view(torch.int32) >> 16) & 0xFFFF).int()
    index += flat > bounds.index_select(0, index)
    codes.copy_(index.sub_(128 if signed else 0).view(codes.shape))
