"""Errors that tell the reader of a notebook what is missing and what to do."""

from __future__ import annotations


class FigureError(ValueError):
    """A table, column, style or citation that a figure needs is missing or malformed."""
