"""When a gradient is complete: after every part of one backward that may still add to it.

Autograd sums the uses of a parameter before it hands over the gradient, but only within one graph.
A reentrant activation checkpoint hides a part of the graph: its node runs a backward of its own, so
that a layer used in two checkpoints, or inside and outside, gets its gradient in several parts. An
update after the first part would be wrong, and would change weights that the others still need.

So each backward is looked at once, at its first gradient: which parameters does its graph reach
directly, and which could each custom function in it use (the checkpoint's node holds the function
that it will run again)? A gradient waits in ``.grad`` until all of these are done.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import _engine_run_backward

from memopt.errors import UnsupportedCombination

HIDDEN = (
    "a gradient comes from a backward inside another one, but the outer one cannot be seen, so "
    "nobody knows whether it is complete. Checkpoint with use_reentrant=False."
)
MOST_OBJECTS = 10_000  # looked at to find what a function could use; beyond that: everything
_CUSTOM_NODE: Any = BackwardCFunction
_CUSTOM_BACKWARD = BackwardCFunction.apply.__code__
_RUN_BACKWARD = _engine_run_backward.__code__


class Uses:
    """Who may still add to the gradients of one outermost backward.

    Args:
        roots: what backward was called on; empty where that cannot be seen.
        ours: the parameters that matter.
        complete: called with each parameter whose gradient has waited and is now complete.
        ended: called when the backward is over.
    """

    def __init__(
        self,
        roots: list[Any],
        ours: Collection[Tensor],
        complete: Callable[[Tensor], None],
        ended: Callable[[], None],
    ) -> None:
        self._roots = [_reference(root) for root in roots]
        self._complete, self._ended = complete, ended
        self._left: dict[Tensor, int] = {}  # parameter -> parts of the graph that may add to it
        self._waiting: dict[Tensor, None] = {}
        self._done: set[Tensor] = set()
        self._queued = False
        leaves, nodes = _look(roots)
        self._hooks = [self._watch(node, ours) for node in nodes]
        if nodes:
            self._count(leaf for leaf in leaves if leaf in ours)

    def are_of(self, roots: list[Any]) -> bool:
        """Whether this is the backward of these roots (an exception may have left an old one)."""
        known = [reference() for reference in self._roots]
        return len(known) == len(roots) and all(a is b for a, b in zip(known, roots, strict=True))

    def arrived(self, param: Tensor, *, nested: bool) -> bool:
        """Whether the gradient in ``param.grad`` is complete now; else `complete` follows.

        Raises:
            UnsupportedCombination: a nested backward in a graph that cannot be seen.
        """
        if nested:
            if not self._hooks:
                raise UnsupportedCombination(HIDDEN)
            self._waiting[param] = None  # until its checkpoint is done: others may be inside
            return False
        self._queue()
        self._left[param] = self._left.get(param, 1) - 1
        if self._left[param] > 0:
            self._waiting[param] = None
            return False
        self._take(param)
        return True

    def came_whole(self, param: Tensor) -> None:
        """In place of `arrived`, for a gradient that needs no sum over uses (FSDP2's)."""
        if not self._hooks:  # else the end of a checkpoint asks; this may be nested in one
            self._queue()
        self._take(param)

    def _take(self, param: Tensor) -> None:
        self._waiting.pop(param, None)
        self._done.add(param)

    def closed(self, param: Tensor) -> bool:
        """Whether the gradient was already declared complete in this backward."""
        return param in self._done

    def forget(self) -> None:
        """Takes the hooks off the graph."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _watch(self, node: Any, ours: Collection[Tensor]) -> Any:
        within = _usable_by(node)
        mine = [param for param in ours if within is None or param in within]
        self._count(mine)

        def finished(*_: Any) -> None:
            self._queue()
            for param in mine:
                self._left[param] -= 1
            self._release(param for param in self._waiting if self._left.get(param, 0) <= 0)

        return node.register_hook(finished)

    def _count(self, params: Iterable[Tensor]) -> None:
        for param in params:
            self._left[param] = self._left.get(param, 0) + 1

    def _release(self, params: Iterable[Tensor]) -> None:
        for param in list(params):
            self._take(param)
            self._complete(param)

    def _queue(self) -> None:
        """Asks for a call at the end of the running backward, which must be the outermost."""
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.forget()
        self._release(self._waiting)  # a use that never came: `inputs=` of backward, for example
        self._ended()


def nested() -> bool:
    """Whether the running hook belongs to a backward started by a custom function's backward.

    That is what reentrant activation checkpointing does.
    """
    return any(frame.f_code is _CUSTOM_BACKWARD for frame in _frames(sys._getframe()))


def roots() -> list[Any]:
    """What the running outermost backwards were called on, in every thread.

    Autograd calls the hooks of a GPU's parameters in a thread of its own, while the caller of
    backward waits in its.
    """
    # no local variable holds a frame: it would hold itself, and with it the graph
    return list(chain.from_iterable(map(_called_on, sys._current_frames().values())))


def _called_on(top: types.FrameType) -> Iterable[Any]:
    outermost = None
    for frame in _frames(top):
        if frame.f_code is _RUN_BACKWARD:
            outermost = frame
        elif frame.f_code is _CUSTOM_BACKWARD:
            outermost = None  # that one was nested
    return () if outermost is None else outermost.f_locals["t_outputs"]


def _reference(root: Any) -> Callable[[], Any]:
    return weakref.ref(root) if isinstance(root, Tensor) else lambda: root


def _frames(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _look(roots: list[Any]) -> tuple[set[Tensor], list[Any]]:
    """Leaves and custom functions' nodes of a graph."""
    leaves: set[Tensor] = set()
    nodes, seen = [], set()
    stack = [root.grad_fn if isinstance(root, Tensor) else root.node for root in roots]
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, _CUSTOM_NODE):
            if not node._forward_cls.__module__.startswith("torch.distributed."):  # FSDP2's own
                nodes.append(node)
        elif isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves.add(leaf)
        stack += [following for following, _ in node.next_functions]
    return leaves, nodes


def _usable_by(node: Any) -> set[Tensor] | None:
    """Parameters that a node's backward could use: those to which its attributes lead.

    None: too many objects to look at; then it could be any.
    """
    found: set[Tensor] = set()
    seen: dict[int, Any] = {}
    stack = list(vars(node).values())
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if len(seen) + len(stack) > MOST_OBJECTS:
            return None
        if isinstance(each, Tensor):
            found.add(each)
        elif isinstance(each, nn.Module):
            found.update(each.parameters())
        else:
            stack += _leads_to(each)
    return found


def _leads_to(each: Any) -> Iterable[Any]:
    if isinstance(each, list | tuple | set | frozenset):
        return each
    if isinstance(each, dict):
        return each.values()
    if isinstance(each, types.MethodType):
        return (each.__self__, each.__func__)
    if isinstance(each, functools.partial):
        return (each.func, each.args, each.keywords)
    if isinstance(each, types.FunctionType):
        return _variables(each)
    if isinstance(each, type | types.ModuleType) or not hasattr(each, "__dict__"):
        return ()
    return vars(each).values()


def _variables(function: types.FunctionType) -> Iterator[Any]:
    """What a function holds: enclosed variables, defaults, and globals of its own file."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    yield function.__defaults__
    yield function.__kwdefaults__
    if function.__module__ and function.__module__.split(".")[0] == "torch":
        return
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, types.FunctionType):
                if value.__globals__ is function.__globals__:
                    yield value
            elif isinstance(value, Tensor | nn.Module | list | tuple | dict):
                yield value
