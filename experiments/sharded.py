"""A model divided among processes by FSDP2: divided, gathered, and filled from whole files.

Checkpoints hold whole tensors, so that any number of processes can go on from them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel

from experiments import processes
from memopt.states import sharding


def divide(model: PreTrainedModel, *, cpu: bool) -> None:
    """Divides every weight by rows, in place; blocks of the model are gathered one at a time."""
    mesh = init_device_mesh("cpu" if cpu else "cuda", (processes.count(),))
    blocks = set(model._no_split_modules or ())
    for module in list(model.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_divided(model: nn.Module) -> bool:
    """Whether `divide` was applied."""
    return isinstance(model, FSDPModule)


def settle(model: nn.Module) -> None:
    """Gives up weights that a forward without backward (evaluation) has left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The whole state dict, on the CPU of the first process; empty on the others. All must ask."""
    found = {}
    for name, value in model.state_dict().items():
        whole = sharding.whole(value)
        if processes.first():
            found[name] = whole.cpu()
    return found


def fill(model: nn.Module, folder: Path) -> None:
    """Reads this process's part of every weight from a checkpoint's safetensors files."""
    kept = model.state_dict()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name in file.keys():  # noqa: SIM118  a safetensors file has no other iteration
                part = sharding.placed(file.get_tensor(name), kept[name])
                sharding.local(kept[name]).copy_(sharding.local(part))
