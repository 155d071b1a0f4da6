"""Model shapes: named ones and Hugging Face configurations. Nothing here allocates a weight."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from memopt.accounting.skeletons import ConfigError, skeleton
from memopt.errors import unknown

SHAPES_FILE = Path(__file__).with_name("shapes.toml")


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    return tomllib.loads(SHAPES_FILE.read_text(encoding="utf-8"))


def names() -> list[str]:
    """All named shapes, in the order of `shapes.toml`."""
    return list(_shapes())


def named(name: str) -> dict[str, Any]:
    """Configuration of a named shape, as the fields of a Hugging Face ``config.json``.

    Raises:
        ValueError: unknown name; the message has the nearest one.
    """
    if name not in _shapes():
        raise unknown("model shape", name, names())
    return dict(_shapes()[name]["config"])


def parameters(name: str) -> int:
    """Number of elements that `shapes.toml` states for a named shape; tied tensors count once."""
    named(name)
    return int(_shapes()[name]["parameters"])


def read(source: str | Path) -> dict[str, Any]:
    """Configuration from a named shape, a ``config.json`` or a directory that holds one.

    Raises:
        ValueError: neither a known name nor an existing path.
        ConfigError: there is no such file, or it is no JSON object.
    """
    path = Path(source)
    if not path.exists():
        if isinstance(source, Path) or path.suffix or len(path.parts) > 1:
            raise ConfigError(f"{source}: there is no such file or directory")
        return named(str(source))
    if path.is_dir():
        path /= "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable JSON configuration ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(config).__name__}")
    return config


def fields_of(model: Any) -> dict[str, Any]:
    """The fields of a configuration: of whatever `module_of` takes, except a module.

    Raises:
        ConfigError, ValueError, TypeError: as `module_of`.
    """
    if isinstance(model, (str, Path)):
        return read(model)
    if isinstance(model, Mapping):
        return dict(model)
    if hasattr(model, "to_dict"):
        return dict(model.to_dict())
    raise TypeError(
        f"model is a {type(model).__name__}; expected a torch module, a shape's name, a "
        "configuration (object, mapping, JSON file or directory)"
    )


def module_of(model: Any) -> nn.Module:
    """The module to account for, from whatever names or describes it.

    Args:
        model: a module (returned as it is), a shape's name, the path of a Hugging Face
            configuration or its directory, a mapping of its fields, or a configuration object
            (anything with ``to_dict``).

    Raises:
        ConfigError: the configuration is of an unknown family or lacks a field.
        ValueError: the name is unknown.
    """
    if isinstance(model, nn.Module):
        return model
    return skeleton(fields_of(model))
