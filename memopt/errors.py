"""Named errors of memopt, and the one way in which unknown names are reported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnsupportedCombination(ValueError):
    """Two choices that cannot work together; the message says why and what to use instead."""


class NonFiniteGradientError(RuntimeError):
    """A gradient holds NaN or infinity; the message names the parameter."""


class MiniBatchError(RuntimeError):
    """A call or a gradient out of turn for an optimizer that consumes gradients in backward."""


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """Builds the error for a name that is not among the known ones, with the nearest one.

    Args:
        what: kind of thing, for example ``"method"``.
        name: the name that was given.
        known: all valid names.

    Returns:
        A ``ValueError`` to be raised by the caller.
    """
    choices = sorted(known)
    lower = {choice.lower(): choice for choice in choices}  # "GWT" is near "gwt"
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f" Did you mean {lower[near[0]]!r}?" if near else ""
    return ValueError(f"unknown {what} {name!r}.{hint} Valid: {', '.join(choices)}.")
