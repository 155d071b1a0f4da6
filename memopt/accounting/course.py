"""The course of memory through forward and backward, which is the same for every method.

One pass of the real model under PyTorch's FakeTensorMode: no tensor has memory, every operation
says what it would make. What a method adds (states, and what its update needs for a moment) is
known by itself, so one pass serves all methods, and two passes every batch size: activations grow
linearly with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from memopt.accounting.live import Alive
from memopt.accounting.real import Workload, loss_of
from memopt.errors import UnsupportedCombination

Release = Literal["never", "last", "always"]
BUILD_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "mixed": torch.bfloat16}


@dataclass(frozen=True)
class Course:
    """Bytes that live beside weights and states, after each operation that makes a tensor.

    Attributes:
        live: activations, gradients, temporaries and the batch.
        gradients: the gradients among them.
        arrivals: of gradients that are dropped as they come: index into `live`, and the shape.
        buffers: bytes of the module's buffers.
    """

    live: tuple[int, ...]
    gradients: tuple[int, ...]
    arrivals: tuple[tuple[int, tuple[int, ...]], ...]
    buffers: int

    @property
    def activations(self) -> int:
        """The most that lives at once beside gradients."""
        return max(live - held for live, held in zip(self.live, self.gradients, strict=True))


class _Recorder(Alive):
    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.live: list[int] = []
        self.gradients: list[int] = []
        self.arrivals: list[tuple[int, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.live.append(self.now)
        self.gradients.append(self.held)
        return result


def follow(
    workload: Workload,
    dtype: str,
    release: Release,
    adapt: Callable[[nn.Module], Any] | None = None,
) -> Course:
    """Runs the micro-batches of one step without an optimizer.

    Args:
        workload: model, batch and how they are run.
        dtype: of `memopt.accounting.predict`; ``"mixed"`` runs in bfloat16.
        release: which gradients are dropped as they come: none, those of the last micro-batch
            (LOMO, AdaLomo), or all (AdamA).
        adapt: changes the model before the pass, as adapters do.

    Raises:
        UnsupportedCombination: the model decides by the values of tensors.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), tracing_errors():
        with default_dtype(BUILD_DTYPES[dtype]):
            model = adapted(workload.model, adapt)[0] if adapt else workload.model()
        batches = min(workload.micro_batches, 2)  # every later one is like the second
        with _Recorder() as record:
            for index in range(batches):
                drops = release == "always" or (release == "last" and index == batches - 1)
                hooks = _watch(model, record, drops=drops)
                inputs = workload.inputs()
                loss = loss_of(model(**inputs))
                loss.backward()
                del loss
                for hook in hooks:
                    hook.remove()
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    return Course(tuple(record.live), tuple(record.gradients), tuple(record.arrivals), buffers)


def adapted(
    build_model: Callable[[], nn.Module], adapt: Callable[[nn.Module], Any]
) -> tuple[nn.Module, Any]:
    """A changed model and what changed it, under fake tensors.

    Both are made on the meta device and copied: peft cannot change a model of fake tensors.
    """
    with _disable_current_modes(), torch.device("meta"):
        model = build_model()
        optimizer = adapt(model)
    memo: dict[int, Any] = {
        id(param): nn.Parameter(
            torch.empty(param.shape, dtype=param.dtype), requires_grad=param.requires_grad
        )
        for param in model.parameters()
    }
    memo |= {id(b): torch.empty(b.shape, dtype=b.dtype) for b in model.buffers()}
    return copy.deepcopy((model, optimizer), memo)


def _watch(model: nn.Module, record: _Recorder, *, drops: bool) -> list[Any]:
    """Hooks that note each complete gradient, and drop it where the method does."""

    def arrived(param: Tensor) -> None:
        assert param.grad is not None
        if drops:
            record.arrivals.append((len(record.live) - 1, tuple(param.shape)))
            record.held -= param.grad.nbytes if id(param) in holding else 0
            holding.discard(id(param))
            param.grad = None
        elif id(param) not in holding:
            holding.add(id(param))
            record.held += param.grad.nbytes

    trained = [param for param in model.parameters() if param.requires_grad]
    holding = {id(param) for param in trained if param.grad is not None}
    return [param.register_post_accumulate_grad_hook(arrived) for param in trained]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    """Builds under a default dtype: casting afterwards fails on fake weights."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tracing_errors() -> Any:
    """Says in words that a step asks for the value of a tensor."""
    try:
        yield
    except DataDependentOutputException as error:
        raise UnsupportedCombination(
            f"the step decides by the values of tensors ({error.func}), which a trace does not "
            "have. Measure such a step on a device, or predict its states."
        ) from error
