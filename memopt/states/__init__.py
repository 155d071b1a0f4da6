"""How optimizer state is declared and kept: float32, bfloat16 or 8-bit blocks."""

from memopt.states.storage import (
    STORAGES,
    Buffer,
    allocate,
    compute_dtype,
    load,
    nbytes,
    store,
    tensors_of,
)

__all__ = [
    "STORAGES",
    "Buffer",
    "allocate",
    "compute_dtype",
    "load",
    "nbytes",
    "store",
    "tensors_of",
]
