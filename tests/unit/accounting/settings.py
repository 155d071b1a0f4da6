"""Arguments for every method of the catalog, so that a new row is accounted for by itself."""

from typing import Any

from memopt import METHODS

# taken by every method that knows the name; short intervals, so that a few steps pass a refresh
# of each kind
SMALL = {
    "rank": 8,
    "level": 2,
    "update_interval": 2,
    "recalibrate_every": 2,
}


def arguments(method: str) -> dict[str, Any]:
    """Those of `SMALL` that a method's constructor takes."""
    known = METHODS[method].arguments()
    return {name: value for name, value in SMALL.items() if name in known}


# those for several processes are in tests/distributed
ARGUMENTS = {name: arguments(name) for name, row in METHODS.items() if row.kind != "distributed"}
