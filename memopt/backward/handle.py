"""What both timings share: hooks, mini-batches, the gradient norm, and the way back."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from memopt.backward import guards, uses
from memopt.errors import MiniBatchError, NonFiniteGradientError, UnsupportedCombination
from memopt.states import sharding

# parameter -> weak reference to the handle that consumes its gradients
_OWNERS: Any = WeakTensorKeyDictionary()


class Exchange(Protocol):
    """What several processes do with gradients and states (see `memopt.distributed`)."""

    def gradient(self, handle: Any, param: Tensor, grad: Tensor) -> bool:
        """Combines ``grad`` over processes, in place; False where another process takes it."""

    def opened(self, handle: Any, param: Tensor) -> None:
        """Before the first micro-gradient of a mini-batch enters the parameter's state."""

    def closing(self, handle: Any) -> None:
        """After the last gradient of a mini-batch, before ``step()`` changes weights."""

    def closed(self, handle: Any) -> None:
        """After ``step()`` has changed the weights of parameters that accumulate."""


class Handle:
    """Consumes gradients in post-accumulate hooks until `remove` is called.

    A *mini-batch* opens with the first gradient and closes in ``optimizer.step()``, which every
    training loop calls anyway; between the two, any number of backward passes may run. The handle
    lives as ``optimizer.timing``.
    """

    _uses: uses.Uses | None = None
    """The running backward."""
    _task = -1
    """The graph that autograd was last seen at work on."""

    def __init__(self, optimizer: torch.optim.Optimizer, micro_batches: int | None) -> None:
        if getattr(optimizer, "timing", None) is not None:
            raise UnsupportedCombination(
                f"this {type(optimizer).__name__} already has a timing in backward; call its "
                "`timing.remove()` first."
            )
        if micro_batches is not None and (
            isinstance(micro_batches, bool)
            or not isinstance(micro_batches, int)
            or micro_batches < 1
        ):
            raise ValueError(f"micro_batches must be an integer above zero, got {micro_batches!r}")
        self.micro_batches = micro_batches
        self.exchange: Exchange | None = None
        self._optimizer = weakref.ref(optimizer)
        self._index: dict[Tensor, int] = {}  # parameter -> number of its group
        self._hooks: list[Any] = []
        self._watched = False
        self._other_scalers = guards.scalers_in_use()
        self.squares: dict[torch.device, Tensor] = {}
        self._reset()
        self.attach()
        optimizer.timing = self  # type: ignore[attr-defined]
        # makes a GradScaler call step(), where it is refused (`guards` may miss one in use before)
        self._scaling = vars(optimizer).get("_step_supports_amp_scaling", False)
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        self._hooks += [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_pre_hook(lambda _: self._refuse_open("state_dict()")),
            optimizer.register_load_state_dict_post_hook(lambda _: self._reset()),
        ]
        # a dropped optimizer leaves no hooks behind
        weakref.finalize(self, _remove_all, self._hooks).atexit = False

    # ---- for the user ----------------------------------------------------------------------

    @property
    def optimizer(self) -> Any:
        """The optimizer that this handle feeds."""
        return self._optimizer()

    @property
    def last_grad_norm(self) -> float:
        """Norm of the gradients consumed in the latest mini-batch; reading it synchronises."""
        return float(self._norm())

    def remove(self) -> None:
        """Gives back the ordinary optimizer: gradients stay in ``.grad``, ``step()`` uses them.

        Raises:
            MiniBatchError: in the middle of a mini-batch.
        """
        self._refuse_open("remove()")
        _remove_all(self._hooks)
        for param in self._index:
            _OWNERS.pop(param, None)
        self._index.clear()
        self.optimizer.timing = None
        self.optimizer._step_supports_amp_scaling = self._scaling

    def attach(self) -> None:
        """Hooks every parameter not hooked yet: at construction and after ``add_param_group``.

        Frozen parameters are hooked too, so that thawing needs no further call.
        """
        for index, group in enumerate(self.optimizer.param_groups):
            for param in group["params"]:
                if param not in self._index:
                    self._own(param)
                    self._index[param] = index
                    if param.is_floating_point():  # frozen integers (quantised weights) have none
                        self._hooks.append(self._hook(param))

    def params(self) -> Iterator[Tensor]:
        """All parameters, in the order of the groups."""
        yield from self._index

    def group_of(self, param: Tensor) -> dict[str, Any]:
        """The group that holds a parameter (loading a state dict replaces groups)."""
        group: dict[str, Any] = self.optimizer.param_groups[self._index[param]]
        return group

    def discard(self) -> None:
        """Forgets the open mini-batch, as ``zero_grad()`` asks.

        Raises:
            MiniBatchError: gradients of it are already in weights or states.
        """
        if self._consumed():
            self._refuse_open("zero_grad()")
        self._reset()

    # ---- for the two timings ---------------------------------------------------------------

    def _gradient(self, param: Tensor) -> None:
        """The gradient of one backward is complete in ``param.grad``."""
        raise NotImplementedError

    def _close(self) -> None:
        """``step()`` was called (and its closure has run)."""
        raise NotImplementedError

    def _consumed(self) -> bool:
        """Whether gradients of the open mini-batch are gone into weights or states."""
        raise NotImplementedError

    def _reset(self) -> None:
        self._fresh = True
        self.fired: dict[Tensor, int] = {}  # parameter -> backwards that gave it a gradient
        self._reentrant = False
        self._ended()

    def _name(self, param: Tensor) -> str:
        group = self.group_of(param)
        position = next(i for i, other in enumerate(group["params"]) if other is param)
        names = group.get("param_names")
        return names[position] if names else f"group{self._index[param]}.param{position}"

    def _exchanged(self, param: Tensor) -> bool:
        """Combines ``param.grad`` over processes; False where another process takes it."""
        assert param.grad is not None
        return self.exchange is None or self.exchange.gradient(self, param, param.grad)

    def _usable(self, param: Tensor) -> bool:
        """Measures a gradient and applies the optimizer's non-finite policy to it."""
        square, group = self._measure(param), self.group_of(param)
        if group.get("nonfinite", "ignore") == "ignore" or bool(square.isfinite()):
            return True
        try:
            usable: bool = self.optimizer.check_finite([(param, group)])
        except NonFiniteGradientError:
            raise NonFiniteGradientError(
                f"the gradient of {self._name(param)!r} is not finite. It was not used, but "
                "gradients that backward reached before it were: go back to a checkpoint, or pass "
                "nonfinite='skip'."
            ) from None
        return usable

    def _measure(self, param: Tensor) -> Tensor:
        """The gradient's squared norm, also added up on its device."""
        grad = param.grad
        assert grad is not None
        if grad.is_sparse:
            return torch.zeros(())  # the optimizer refuses it, in better words
        square = sharding.square_of(grad)
        before = self.squares.get(grad.device)
        self.squares[grad.device] = square if before is None else before + square
        return square

    def _norm(self) -> Tensor:
        if not self.squares:
            return torch.zeros(())
        first = next(iter(self.squares))
        return torch.stack([s.to(first).double() for s in self.squares.values()]).sum().sqrt()

    # ---- machinery -------------------------------------------------------------------------

    def _own(self, param: Tensor) -> None:
        owner = _OWNERS[param]() if param in _OWNERS else None
        if owner is not None and owner.optimizer is not None:
            raise UnsupportedCombination(
                f"the gradient of {owner._name(param)!r} is already consumed in backward by "
                f"another {type(owner.optimizer).__name__}; call its `timing.remove()` first."
            )
        _OWNERS[param] = weakref.ref(self)

    def _hook(self, param: Tensor) -> Any:
        me = weakref.ref(self)

        def hook(param: Tensor) -> None:
            handle = me()
            if handle is not None and handle.optimizer is not None:
                with torch.no_grad():
                    handle._arrived(param)

        trainable = param.requires_grad
        param.requires_grad_(True)  # torch takes hooks only then; they survive freezing
        registered = param.register_post_accumulate_grad_hook(hook)
        param.requires_grad_(trainable)
        return registered

    def _arrived(self, param: Tensor) -> None:
        if not self._watched:
            guards.refuse_wrappers(self.params(), self._other_scalers)
            self._watched = True
        if self._fresh:
            self._fresh, self.squares = False, {}  # kept until now for `last_grad_norm`
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._enter()
            self._task = task
        assert self._uses is not None
        if self._uses.closed(param):
            raise self._repeated(param, self.fired[param] + 1, "a backward gave it complete")
        if sharding.is_sharded(param):  # FSDP2 calls the hook itself, with whole gradients
            self._uses.came_whole(param)
            self._completed(param)
        elif self._uses.arrived(param, nested=self._nested):
            self._completed(param)

    def _enter(self) -> None:
        """Another graph begins: the outermost one of a backward, or one nested in it."""
        self._nested = uses.nested()
        self._reentrant |= self._nested
        roots = uses.roots()
        if self._uses is None or not self._uses.are_of(roots):
            self._ended()
            self._uses = uses.Uses(roots, self._index, self._completed, self._ended)

    def _ended(self) -> None:
        """The outermost backward is over, or given up."""
        if self._uses is not None:
            self._uses.forget()
        self._uses = None
        self._task = -1

    def _completed(self, param: Tensor) -> None:
        with torch.no_grad():
            self.fired[param] = self.fired.get(param, 0) + 1
            self._gradient(param)

    def _before_step(self, _: Any, args: Any, kwargs: Any) -> Any:
        """Closes the mini-batch when ``step`` begins, or as soon as its closure has run."""
        if hasattr(self.optimizer, "grad_scale"):
            raise UnsupportedCombination(guards.SCALER)
        self.attach()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            with torch.no_grad():
                self._close()
            return None

        def closing() -> Any:
            loss = closure()
            with torch.no_grad():
                self._close()
            return loss

        return args[:1], {**kwargs, "closure": closing}

    def _refuse_open(self, call: str) -> None:
        if self.fired:
            raise MiniBatchError(
                f"{call} in the middle of a mini-batch: {len(self.fired)} parameters have "
                "received gradients since the last optimizer.step(). Call step() first."
            )

    def _repeated(self, param: Tensor, count: int, allowed: str) -> MiniBatchError:
        why = (
            "Reentrant activation checkpointing splits the gradient of a layer that is used "
            "several times; pass use_reentrant=False."
            if self._reentrant
            else "Call optimizer.step() after each mini-batch, and pass the number of backward "
            "passes in one as micro_batches."
        )
        return MiniBatchError(
            f"{self._name(param)!r} received {count} gradients in one mini-batch, "
            f"but {allowed}; weights and states since the last step() are not to be trusted. {why}"
        )

    def _written(self, param: Tensor) -> MiniBatchError:
        return MiniBatchError(
            f"{self._name(param)!r} has a gradient in .grad although its gradient was used in "
            "backward: something wrote to .grad besides autograd (a DDP-like wrapper?)."
        )


def _remove_all(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()
