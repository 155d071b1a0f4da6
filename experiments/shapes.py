"""The named shapes of models, ``memopt/accounting/shapes.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.errors import UserError


@cache
def shapes() -> dict[str, Any]:
    """All named shapes; read without importing memopt, which would import torch."""
    package = find_spec("memopt")
    if package is None or not package.submodule_search_locations:
        raise UserError("the package memopt is not installed: pip install -e .")
    path = Path(package.submodule_search_locations[0]) / "accounting" / "shapes.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))
