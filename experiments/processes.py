"""The processes of one run, as torchrun starts them: who writes, and what all agree on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import distributed

T = TypeVar("T")


def count() -> int:
    """How many processes train this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first() -> bool:
    """Whether this is the process that writes files and talks."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def together(*, cpu: bool) -> Iterator[None]:
    """The process group of a run: gloo on the CPU, NCCL with a GPU for each process."""
    if count() == 1 or distributed.is_initialized():
        yield
        return
    if not cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("gloo" if cpu else "cpu:gloo,cuda:nccl")
    yield
    distributed.destroy_process_group()  # after an error it could wait for the others


def device(*, cpu: bool) -> torch.device:
    """Where this process trains."""
    return torch.device("cpu") if cpu else torch.device("cuda", torch.cuda.current_device())


def wait() -> None:
    """Until every process is here."""
    if count() > 1:
        distributed.barrier()


def from_first(value: T) -> T:
    """The first process's value, on every process."""
    if count() == 1:
        return value
    box: list[Any] = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[no-any-return]
