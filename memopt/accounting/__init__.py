"""Where the bytes go: predicted by formula, measured on a live optimizer, traced over a step."""

from typing import TYPE_CHECKING, Any

from memopt.accounting.measure import measure
from memopt.accounting.predict import predict
from memopt.accounting.report import GroupBytes, Report
from memopt.accounting.units import CONVENTIONS, Convention, convention, convert

if TYPE_CHECKING:
    from memopt.accounting.tracing import Trace, trace

__all__ = [
    "CONVENTIONS",
    "Convention",
    "GroupBytes",
    "Report",
    "Trace",
    "convention",
    "convert",
    "measure",
    "predict",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Loads the tracing at first use: it imports a good part of torch.distributed."""
    if name in ("Trace", "trace"):
        from memopt.accounting import tracing

        return getattr(tracing, name)
    raise AttributeError(f"module 'memopt.accounting' has no attribute {name!r}")
