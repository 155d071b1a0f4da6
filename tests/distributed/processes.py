"""Runs one function on several gloo processes and hands back what each of them returned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

Work = Callable[[int, int, Path], Any]


def run(work: Work, processes: int, folder: Path) -> list[Any]:
    """Calls ``work(rank, processes, folder)`` in spawned processes with a process group.

    Args:
        work: a function of a module, what it returns can be saved by torch.
        processes: how many.
        folder: empty, of this call alone.
    """
    multiprocessing.spawn(_worker, (work, processes, str(folder)), nprocs=processes)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(processes)]


def _worker(rank: int, work: Work, processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes
    )
    torch.save(work(rank, processes, Path(folder)), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
