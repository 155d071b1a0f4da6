"""ZeRO stage 1: AdamW with its states dealt out to processes (Rajbhandari et al., 1910.02054)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.optim import ZeroRedundancyOptimizer

from memopt.errors import UnsupportedCombination


class ZeRO1AdamW(ZeroRedundancyOptimizer):
    """``torch.optim.AdamW`` in torch's ``ZeroRedundancyOptimizer``: P_os of the ZeRO paper.

    Whole parameters are dealt out. A process keeps the moments of its own parameters, updates
    those, and broadcasts the new weights; gradients must be equal on all processes before
    ``step()`` (wrap the model in DistributedDataParallel). The arithmetic is AdamW's, element by
    element: equal gradients give one process's bits.

    State on the process with the most, of M: about ``2 / M`` numbers a weight, see `shares`.

    Checkpoints: every process calls ``consolidate_state_dict(to=rank)``; then that rank's
    ``state_dict()`` is AdamW's own, which AdamW and any number of processes load.

    Args:
        params: parameters, named parameters, or groups; all of one dtype. Names are dropped, as
            torch's class cannot keep them.
        lr, betas, eps, weight_decay: AdamW's, with torch's defaults.

    Raises:
        UnsupportedCombination: there is no process group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise UnsupportedCombination(
                "ZeRO1AdamW divides its states among processes, and there is no process group: "
                "start with torchrun and call torch.distributed.init_process_group(), or use "
                "memopt.AdamW on one process."
            )
        given = list(params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        super().__init__(
            [_unnamed(group) for group in groups],
            torch.optim.AdamW,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
        )
        self.state = self.optim.state  # what this process keeps, for `memopt.accounting`

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch, without names."""
        super().add_param_group(_unnamed(param_group))

    def state_dict(self) -> dict[str, Any]:
        """What `consolidate_state_dict` has gathered here; before the first step, the groups."""
        gathered: list[Any] = self._all_state_dicts  # type: ignore[attr-defined]
        if not self.optim.state and not gathered:
            return torch.optim.Optimizer.state_dict(self)  # accelerate asks for it
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads this process's part of a whole state, without changing or keeping the caller's.

        torch's class empties the dict that it is given, and keeps its own part twice.
        """
        own = {
            index: {key: _copied(value) for key, value in state.items()}
            for index, state in state_dict["state"].items()
        }
        super().load_state_dict({**state_dict, "state": own})
        self.state = self.optim.state

    def __getstate__(self) -> dict[str, Any]:
        raise UnsupportedCombination(
            "ZeRO1AdamW can be neither copied nor pickled: its states lie on several processes. "
            "Save state_dict() after consolidate_state_dict()."
        )

    @staticmethod
    def shares(groups: Iterable[dict[str, Any]], processes: int) -> list[list[Tensor]]:
        """The parameters of each process, as torch deals them out.

        Group after group, largest first, each to the process with the fewest elements so far.
        """
        dealt: list[list[Tensor]] = [[] for _ in range(processes)]
        load = defaultdict[int, int](int)
        for group in groups:
            for param in sorted(group["params"], key=lambda p: p.numel(), reverse=True):
                rank = min(range(processes), key=lambda r: load[r])
                dealt[rank].append(param)
                load[rank] += param.numel()
        return dealt


def _unnamed(group: dict[str, Any]) -> dict[str, Any]:
    """The group with parameters alone, in a list, where it may hold pairs of name and parameter."""
    given = group["params"]
    params = [given] if isinstance(given, Tensor) else list(given)
    return {
        **{key: value for key, value in group.items() if key != "param_names"},
        "params": [param[1] if isinstance(param, tuple) else param for param in params],
    }


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
