"""The order in which a run sees its rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset


class Order(Dataset[Any]):
    """The rows in the order in which the run sees them: a function of the data seed alone.

    Each epoch is one permutation of all rows, every row once; the run is one long sequence of them,
    so that no update is shorter than the others and position i means the same after a resume.

    Args:
        rows: anything with ``len`` and integer indexing.
        length: number of rows that the run consumes.
        seed: of the order.
    """

    def __init__(self, rows: Any, length: int, seed: int) -> None:
        self.rows = rows
        self.length = length
        self.seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> Any:
        return self.rows[self.row_at(position)]

    def row_at(self, position: int) -> int:
        """Index of the row at a position of the run."""
        epoch, place = divmod(position, len(self.rows))
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self.seed << 24) + epoch)
            self._permutation = torch.randperm(len(self.rows), generator=generator)
            self._epoch = epoch
        return int(self._permutation[place])
