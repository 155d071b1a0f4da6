"""Storage of moments: an optimizer declares `Buffer`s, this module decides their tensors.

A declared buffer becomes one tensor (float32, bfloat16) or two (8-bit: codes and block
scales). `load` gives a buffer in compute precision, `store` writes it back; both leave
float32 state untouched, so the plain case costs no copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from memopt.states import blockwise

STORAGES = ("float32", "bfloat16", "8bit")


@dataclass(frozen=True)
class Buffer:
    """One thing that an optimizer keeps for one parameter.

    Attributes:
        shape: shape of the buffer.
        kind: ``"moment"`` follows the group's ``storage``; ``"projection"`` too, but stays in
            the weight's precision under 8-bit storage (COAP); ``"scalar"`` always has compute
            precision; ``"index"`` is int32. As torch keeps its own: ``"weight"`` has the weight's
            dtype, ``"count"`` is float32.
        signed: False for second moments, whose 8-bit code has no sign.
    """

    shape: tuple[int, ...]
    kind: Literal["moment", "projection", "scalar", "index", "weight", "count"] = "moment"
    signed: bool = True

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Arithmetic precision for a weight's dtype: float64 for float64, else float32."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def tensors_of(
    key: str, buffer: Buffer, storage: str, dtype: torch.dtype
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of the tensors that hold a declared buffer.

    This is the only place that knows; allocation and the byte formulas both read it.

    Args:
        key: state key, for example ``"exp_avg"``.
        buffer: the declaration.
        storage: one of `STORAGES`.
        dtype: dtype of the weight.
    """
    precise = compute_dtype(dtype)
    fixed = {"index": torch.int32, "weight": dtype, "count": torch.float32}
    if buffer.kind in fixed:
        return {key: (buffer.shape, fixed[buffer.kind])}
    if buffer.kind == "scalar" or storage == "float32":
        return {key: (buffer.shape, precise)}
    if storage == "bfloat16":
        return {key: (buffer.shape, torch.bfloat16)}
    if buffer.kind == "projection":
        return {key: (buffer.shape, dtype)}
    if buffer.numel < blockwise.MINIMUM_ELEMENTS:
        return {key: (buffer.shape, precise)}
    code = torch.int8 if buffer.signed else torch.uint8
    blocks = math.ceil(buffer.numel / blockwise.BLOCK)
    return {key: (buffer.shape, code), f"{key}_absmax": ((blocks,), torch.float32)}


def nbytes(key: str, buffer: Buffer, storage: str, dtype: torch.dtype) -> int:
    """Bytes of a declared buffer under a storage."""
    specs = tensors_of(key, buffer, storage, dtype).values()
    return sum(math.prod(shape) * kind.itemsize for shape, kind in specs)


def allocate(key: str, buffer: Buffer, storage: str, param: Tensor) -> dict[str, Tensor]:
    """Zero tensors for a declared buffer, on the parameter's device."""
    state = {
        name: torch.zeros(shape, dtype=dtype, device=param.device)
        for name, (shape, dtype) in tensors_of(key, buffer, storage, param.dtype).items()
    }
    if f"{key}_absmax" in state:
        state[key].fill_(blockwise.zero_code(signed=buffer.signed))
    return state


def load(state: dict[str, Any], key: str) -> Tensor:
    """The buffer in compute precision; the live tensor itself where it has that precision."""
    value: Tensor = state[key]
    if value.dtype in (torch.int8, torch.uint8):
        return blockwise.dequantize(value, state[f"{key}_absmax"])
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def store(state: dict[str, Any], key: str, value: Tensor) -> None:
    """Writes a buffer back; nothing to do where ``value`` is the live tensor."""
    kept: Tensor = state[key]
    if kept.dtype in (torch.int8, torch.uint8):
        blockwise.quantize_(value, kept, state[f"{key}_absmax"])
    elif kept is not value:
        kept.copy_(value)
