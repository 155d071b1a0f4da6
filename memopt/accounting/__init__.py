"""Where the bytes go: predicted by formula and measured on a live optimizer."""

from memopt.accounting.measure import measure
from memopt.accounting.predict import predict
from memopt.accounting.report import GroupBytes, Report
from memopt.accounting.units import CONVENTIONS, Convention, convention, convert

__all__ = [
    "CONVENTIONS",
    "Convention",
    "GroupBytes",
    "Report",
    "convention",
    "convert",
    "measure",
    "predict",
]
