"""Law 8 of the state: what a step needs for a moment belongs to one parameter, not to the model."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.properties.variants import VARIANTS, build

SHAPE = (64, 48)
PARAMETER_BYTES = 64 * 48 * 4


class Alive(TorchDispatchMode):
    """Largest number of bytes that were alive at once among the storages made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {s._cdata for s in _storages((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storages(value: Any) -> list[Any]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, Tensor)]


def transient(variant: str, count: int, **arguments: Any) -> int:
    """Bytes that the second step of ``count`` equal parameters needs beside the state."""
    draw = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(SHAPE, generator=draw)) for _ in range(count)]
    optimizer = build(VARIANTS[variant], params, **arguments)
    for _ in range(2):
        for param in params:
            param.grad = torch.randn(SHAPE, generator=draw)
        with Alive() as alive:
            optimizer.step()
    return alive.peak


@pytest.mark.parametrize("variant", VARIANTS)
def test_step_needs_room_for_one_parameter_only(variant: str) -> None:
    few, many = transient(variant, 2), transient(variant, 12)
    # a refresh makes QR and SVD factors, the db2 transform its bands: up to ten times one weight
    assert 0 < many <= 10 * PARAMETER_BYTES
    # the finite check keeps one number a parameter
    assert many - few <= 64 * 10
