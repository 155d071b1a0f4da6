"""Where the bytes go: predicted by formula, measured on a live optimizer, traced over a step."""

import importlib
from typing import TYPE_CHECKING, Any

from memopt.accounting.measure import measure
from memopt.accounting.predict import predict
from memopt.accounting.report import GroupBytes, Report
from memopt.accounting.units import CONVENTIONS, Convention, convention, convert

if TYPE_CHECKING:
    from memopt.accounting.fit import Step, step
    from memopt.accounting.tracing import Trace, trace

__all__ = [
    "CONVENTIONS",
    "Convention",
    "GroupBytes",
    "Report",
    "Step",
    "Trace",
    "convention",
    "convert",
    "measure",
    "predict",
    "step",
    "trace",
]


_LATE = {"Trace": "tracing", "trace": "tracing", "Step": "fit", "step": "fit"}


def __getattr__(name: str) -> Any:
    """Loads whole steps at first use: they import a good part of torch.distributed."""
    if name in _LATE:
        return getattr(importlib.import_module(f"memopt.accounting.{_LATE[name]}"), name)
    raise AttributeError(f"module 'memopt.accounting' has no attribute {name!r}")
