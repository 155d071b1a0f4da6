"""The one kind of error that a user is meant to read, and the words for near misses."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(ValueError):
    """A mistake in something the user gave: says where, what was expected and what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for a near miss, else the list of what is known."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(choices)}" if choices else ""


def command_line(main: Callable[[], None]) -> None:
    """Runs a command; a :class:`UserError` becomes one message on stderr and exit status 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
