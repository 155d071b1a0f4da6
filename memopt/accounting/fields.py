"""What all skeletons are made with: the fields of a configuration, and trees of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from memopt.errors import unknown

WAYS = ("Down", "Up")


class ConfigError(ValueError):
    """A model configuration that cannot be read, or lacks what its family needs."""


class Fields:
    """Fields of a configuration, with a `ConfigError` that names the missing or wrong one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer; ``default`` where the field is missing or null."""
        value = self.config.get(key)
        value = default if value is None else value
        if value is None:
            raise ConfigError(
                f"the configuration (model_type {self.config.get('model_type')!r}) has no field "
                f"{key!r}; its fields: {', '.join(sorted(self.config))}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"field {key!r} is {value!r}; expected a positive integer")
        return value

    def sizes(self, key: str) -> list[int]:
        """A list of positive integers."""
        values = self.config.get(key)
        if not isinstance(values, (list, tuple)) or not values:
            raise ConfigError(f"field {key!r} is {values!r}; expected a list of positive integers")
        return [Fields({key: value}).size(key) for value in values]

    def blocks(self, key: str, count: int) -> list[bool]:
        """Whether each block of a UNet has attention, from the names of the blocks."""
        values = self.config.get(key)
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise ConfigError(f"field {key!r} is {values!r}; expected {count} names of blocks")
        known = {f"{attends}{way}Block2D" for attends in ("", "Attn", "CrossAttn") for way in WAYS}
        for value in values:
            if value not in known:
                raise unknown(f"block in {key!r}", str(value), known)
        return ["Attn" in value for value in values]

    def part(self, key: str) -> Fields:
        """The fields of a model within the model."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            raise ConfigError(f"field {key!r} is {value!r}; expected the fields of a configuration")
        return Fields(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A field that is true or false."""
        return bool(self.config.get(key, default))


def tree(**children: nn.Module) -> nn.Module:
    """A module that only holds children, as transformers' blocks do."""
    node = nn.Module()
    for name, child in children.items():
        node.add_module(name, child)
    return node


def attending(head_dim: int, **children: nn.Module) -> nn.Module:
    """A `tree` that knows the size of its heads, as transformers' attention does."""
    node = tree(**children)
    node.head_dim = head_dim  # type: ignore[assignment]
    return node
