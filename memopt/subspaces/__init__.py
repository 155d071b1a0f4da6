"""In which coordinates the moments live."""

from __future__ import annotations

from math import prod

from torch import Tensor


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """``(m, n)`` of a weight of two or more dimensions: all but the first are flattened."""
    return shape[0], prod(shape[1:])


def as_matrix(tensor: Tensor) -> Tensor:
    """The tensor as its `matrix_shape`; a view where the memory layout allows."""
    return tensor.reshape(matrix_shape(tuple(tensor.shape)))
