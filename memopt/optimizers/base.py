"""The base optimizer: the laws of state that every method keeps, written once.

A method declares what it keeps per parameter (`MemoptOptimizer.buffers`) and computes one update
(`MemoptOptimizer.update`). Everything else is here: named parameters, validated groups, compute
precision, weight decay, rounding, the non-finite policy, and checkpoints that keep dtypes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from memopt.errors import NonFiniteGradientError, UnsupportedCombination, unknown
from memopt.optimizers import finite, loading, rounding
from memopt.optimizers.arguments import COMMON_DEFAULTS, NONFINITE, Common, positive
from memopt.rules import adam
from memopt.states import STORAGES, Buffer, allocate, compute_dtype, sharding

# keys that torch, its schedulers and `param_groups` put beside a method's own
GROUP_KEYS = {"params", "param_names", "treated", "name", "initial_lr"}


class MemoptOptimizer(torch.optim.Optimizer):
    """Base of all methods; an ordinary ``torch.optim.Optimizer``.

    Args:
        params: parameters, named parameters, or groups (best: `memopt.param_groups`). A group may
            carry ``treated``: True (the method's algorithm; needs `min_ndim` dimensions), False
            (plain Adam at the full learning rate), or None (default: treated where it can be).
        defaults: the method's hyperparameters, each of which a group may override.
        **common: arguments of every method, see `Common`.

    Raises:
        ValueError: a bad hyperparameter, an unknown group key, or nothing to treat.
    """

    min_ndim: ClassVar[int] = 2
    """Fewest dimensions of a parameter that the method's algorithm takes."""
    suitable: ClassVar[str] = "two or more dimensions"
    """What `treats` asks of a parameter, in words for error messages."""
    decay_last: ClassVar[bool] = False
    """Whether decoupled weight decay follows the update (GaLore, GWT, COAP) or precedes it."""
    aliases: ClassVar[dict[str, str]] = {}
    """Other projects' group keys and ours for the same thing."""
    common_defaults: dict[str, Any] = COMMON_DEFAULTS
    """Arguments that a family of methods shares, with their defaults."""
    timing: Any = None
    """The `memopt.backward.Handle` that consumes gradients in backward, if there is one."""
    _warned_stall = False

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], **common: Unpack[Common]
    ) -> None:
        for argument in common:
            if argument not in self.common_defaults:
                raise unknown("argument", argument, set(defaults) | set(self.common_defaults))
        self._names: dict[int, str] = {}
        hidden = {"skipped_steps": 0, "treated": None}
        super().__init__(params, {**self.common_defaults, **hidden, **defaults, **common})
        if not any(True for _ in self.treated_parameters()):
            raise ValueError(
                f"{type(self).__name__}: nothing to treat: no parameter with {self.suitable} "
                "stands in a group with treated=True or None. Check the groups, or `targets` of "
                "memopt.param_groups."
            )

    # ---- what a method defines -------------------------------------------------------------

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Declares everything kept for one treated parameter of this shape."""
        raise NotImplementedError

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """One step on one treated parameter.

        Args:
            grad: gradient in compute precision, in the parameter's shape; not to be modified.
            state: the parameter's state; ``state["step"]`` is t = 1, 2, ... of this update.
            group: hyperparameters.
            param: the weight before the step.

        Returns:
            What is subtracted from the weight (learning rate included).
        """
        raise NotImplementedError

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Under FSDP2: hyperparameters with which a block of rows is updated without the others.

        None (default): the update gets the whole parameter, gathered. A method may return its
        group where ``update`` needs nothing from other rows at this step, or only what
        `memopt.states.sharding` sums up for it; moments in the shape (rows, ...) are then local.

        Args:
            param: the sharded parameter, whose shape is that of all rows.
            state: its state, with the step of this update.
            group: hyperparameters.
        """
        return None

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Why a group cannot take `memopt.accumulate_in_backward`; None where it can.

        A method that can defines `accumulate` and `finish` beside `update`.
        """
        return "its update needs the gradient of the whole mini-batch, not only its state"

    def accumulate(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        *,
        first: bool,
    ) -> None:
        """Folds one micro-gradient into the state, which the ``first`` of a mini-batch decays."""
        raise NotImplementedError

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """What is subtracted from the weight after the last micro-gradient, from the state."""
        raise NotImplementedError

    def validate(self, group: dict[str, Any]) -> None:
        """Raises ``ValueError`` for a hyperparameter out of range; methods add their own."""
        positive(group, "lr", zero=True)
        positive(group, "weight_decay", zero=True)
        if "betas" in group:
            betas = group["betas"]
            if not (isinstance(betas, tuple | list) and len(betas) == 2):
                raise ValueError(f"betas must be two numbers, got {betas!r}")
            if not all(0 <= beta < 1 for beta in betas):
                raise ValueError(f"betas must each be in [0, 1), got {betas!r}")
        if "eps" in group and isinstance(group["eps"], int | float):
            positive(group, "eps", zero=True)
        if group.get("storage", "float32") not in STORAGES:
            raise unknown("storage", group["storage"], STORAGES)
        if group["nonfinite"] not in NONFINITE:
            raise unknown("nonfinite policy", group["nonfinite"], NONFINITE)
        if group.get("rounding", "nearest") not in rounding.MODES:
            raise unknown("rounding", group["rounding"], rounding.MODES)
        if group["treated"] not in (True, False, None):
            raise ValueError(f"treated must be True, False or None, got {group['treated']!r}")

    # ---- groups and names ------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as in torch, after checking its keys, values and shapes.

        The caller's dict is left as it is, so that one set of groups serves several optimizers.
        """
        group = dict(param_group)
        for alias, key in self.aliases.items():
            if alias in group and key in group:
                raise ValueError(f"group keys {alias!r} and {key!r} are the same thing: give one")
            if alias in group:
                group[key] = group.pop(alias)
        known = GROUP_KEYS | set(self.defaults)
        for key in group:
            if key not in known:
                raise unknown("group key", key, known | set(self.aliases))
        super().add_param_group(group)
        self._remember_names(len(self.param_groups) - 1)
        try:
            self.validate(group)
            for param in group["params"]:
                self._validate_parameter(param, group)
        except ValueError:
            self.param_groups.pop()
            raise
        if self.timing is not None:
            self.timing.attach()

    def _validate_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        what = f"{type(self).__name__}: parameter {self.name_of(param)!r}"
        if group["treated"] and param.ndim < self.min_ndim:
            raise ValueError(
                f"{what} has shape {tuple(param.shape)}, but a treated group needs "
                f"{self.min_ndim} or more dimensions; put it in a group with treated=False "
                "(plain Adam)."
            )
        storage = group.get("storage", "float32")
        if param.dtype is torch.float64 and storage != "float32":
            raise UnsupportedCombination(
                f"{what} is float64, whose state is kept in float64: storage={storage!r} is for "
                "float32 and narrower weights."
            )
        if group.get("rounding") == "stochastic" and param.dtype is torch.float16:
            raise UnsupportedCombination(
                f"{what} is float16, but stochastic rounding is for bfloat16 weights; use "
                "bfloat16 or float32 weights, or rounding='nearest'."
            )

    def _remember_names(self, index: int) -> None:
        group = self.param_groups[index]
        for position, param in enumerate(group["params"]):
            names = group.get("param_names")
            self._names[id(param)] = names[position] if names else f"group{index}.param{position}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._names = {}  # keyed by identity: a copied or unpickled optimizer has other parameters
        for index in range(len(self.param_groups)):
            self._remember_names(index)

    def name_of(self, param: Tensor) -> str:
        """The parameter's name; its position where the caller gave no names."""
        if id(param) not in self._names:  # accelerate puts FSDP2's parameters in place of ours
            for index in range(len(self.param_groups)):
                self._remember_names(index)
        return self._names.get(id(param), "<unknown parameter>")

    @contextmanager
    def named(self, tensor: Tensor, name: str) -> Iterator[None]:
        """Lets a tensor that stands for a parameter have its name."""
        self._names[id(tensor)] = name
        try:
            yield
        finally:
            del self._names[id(tensor)]

    def treats(self, param: Tensor, group: dict[str, Any]) -> bool:
        """Whether the method's algorithm, not plain Adam, updates this parameter."""
        return group["treated"] is not False and param.ndim >= self.min_ndim

    def treated_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Names and parameters that the method's algorithm updates."""
        for group in self.param_groups:
            for param in group["params"]:
                if self.treats(param, group):
                    yield self.name_of(param), param

    def declared(self, param: Tensor, group: dict[str, Any]) -> dict[str, Buffer]:
        """All buffers of one parameter: the method's, or plain Adam's where it is not treated."""
        if self.treats(param, group):
            return self.buffers(tuple(param.shape), group)
        return adam.buffers(tuple(param.shape))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; an open mini-batch of `timing` is forgotten, or refuses to be."""
        if self.timing is not None:
            self.timing.discard()
        super().zero_grad(set_to_none)

    # ---- the step --------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        Args:
            closure: recomputes the gradients and returns the loss (called with autograd on).

        Returns:
            The closure's loss, or None.

        Raises:
            NonFiniteGradientError: under ``nonfinite="raise"``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [
            (param, group)
            for group in self.param_groups
            for param in group["params"]
            if param.grad is not None and param.numel()  # shards can be empty
        ]
        for param, _ in work:
            self._refuse_sparse(param, param.grad)  # before any weight changes
        if self.check_finite(work):
            self.step_all(work)
        return loss

    def step_all(self, work: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """One logical update of each parameter, one after another."""
        for param, group in work:
            assert param.grad is not None
            self.step_parameter(param, param.grad, group)

    def step_parameter(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One logical update of one parameter; the timing engine calls this from its hooks."""
        state, treated = self.state_of(param, group), self.treats(param, group)
        state["step"] += 1
        with sharding.part(self, param, grad, state, group) as part:
            grad = self.prepared(part.grad, part.param, part.group)
            if treated:
                with self.decompositions(part.param):
                    update = self.update(grad, part.state, part.group, part.param)
            else:
                update = self._plain_update(grad, part.state, part.group)
            self.apply(part.param, update, part.state, part.group)

    @contextmanager
    def decompositions(self, param: Tensor) -> Iterator[None]:
        """Names the parameter whose gradient has none: NaN under ``nonfinite="ignore"``."""
        try:
            yield
        except torch.linalg.LinAlgError as error:
            raise NonFiniteGradientError(
                f"no decomposition of the gradient of {self.name_of(param)!r}: {error} Lower "
                "the learning rate, clip gradients, or pass nonfinite='skip'."
            ) from error

    def prepared(self, grad: Tensor, param: Tensor, group: dict[str, Any]) -> Tensor:
        """The gradient in compute precision and descent direction."""
        self._refuse_sparse(param, grad)
        grad = grad.detach().to(compute_dtype(param.dtype))
        return -grad if group["maximize"] else grad

    def _refuse_sparse(self, param: Tensor, grad: Tensor) -> None:
        if grad.is_sparse or grad.is_complex():
            kind = "sparse" if grad.is_sparse else "complex"
            raise UnsupportedCombination(
                f"parameter {self.name_of(param)!r} has a {kind} gradient; memopt needs dense "
                "real ones (for an embedding: sparse=False)."
            )

    def state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The parameter's state, allocated from its declaration at the first use."""
        state = self.state[param]
        if not state:
            state["step"] = 0
            for key, buffer in self.declared(param, group).items():
                fresh = allocate(key, buffer, group.get("storage", "float32"), param)
                state.update({name: sharding.placed(x, param) for name, x in fresh.items()})
        return state

    def _plain_update(self, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """Plain Adam for the parameters that the method leaves alone (norms, embeddings, head)."""
        exp_avg, denominator = adam.moments(grad, state, group["betas"], group["eps"])
        step_size = group["lr"] * adam.bias_correction(state["step"], group["betas"])
        # into the denominator's memory: fresh memory for an embedding costs more than arithmetic
        return torch.div(exp_avg, denominator, out=denominator).mul_(step_size)

    def apply(
        self, param: Tensor, update: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Decoupled weight decay and the update, in compute precision, written back rounded."""
        weight = param.to(compute_dtype(param.dtype))  # the parameter itself where it is precise
        keep = 1 - group["lr"] * group["weight_decay"] if group["weight_decay"] else None
        if keep is not None and not self.decay_last:
            weight.mul_(keep)
        weight.sub_(update)
        if keep is not None and self.decay_last:
            weight.mul_(keep)
        if weight is not param:
            self._write_back(param, weight, state["step"], group)

    def _write_back(self, param: Tensor, weight: Tensor, step: int, group: dict[str, Any]) -> None:
        if group["rounding"] == "stochastic":
            rounding.copy_stochastic_(param, weight, name=self.name_of(param), step=step)
            return
        if step == rounding.STALL_CHECK_STEP and not self._warned_stall:
            self._warned_stall = rounding.stalled(param, weight)
            if self._warned_stall:
                warnings.warn(
                    f"{type(self).__name__}: nearly all of the update of {self.name_of(param)!r} "
                    f"rounds to nothing in {param.dtype}; use rounding='stochastic', float32 "
                    "weights or a larger learning rate.",
                    stacklevel=5,
                )
        param.copy_(weight)

    def check_finite(self, work: list[tuple[Tensor, dict[str, Any]]]) -> bool:
        """Applies the non-finite policy to gradients, see `memopt.optimizers.finite.check`."""
        return finite.check(self, work)

    # ---- checkpoints -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with the method's name beside ``state`` and ``param_groups``."""
        return {**super().state_dict(), "method": type(self).__name__}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads as torch does, but keeps each tensor's dtype (torch casts to the weight's).

        Raises:
            ValueError: a state of another method or of other options; nothing was loaded.
        """
        loading.load(self, super().load_state_dict, state_dict)
