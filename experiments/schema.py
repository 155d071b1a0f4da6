"""YAML files as typed specifications: reading, writing, and errors in the words of the file."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from experiments.errors import UserError, nearest
from experiments.files import dump_yaml, load_yaml


class Strict(BaseModel):
    """Immutable; refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


def to_plain(spec: BaseModel) -> dict[str, Any]:
    """Plain values of a specification; keys that were not given are left out."""
    return spec.model_dump(mode="json", exclude_none=True)


def to_yaml(spec: BaseModel) -> str:
    """YAML text from which :func:`load` makes an equal specification."""
    return dump_yaml(to_plain(spec))


def load(model: type[Model], path: Path) -> Model:
    """Reads and validates one YAML file."""
    return parse(model, load_yaml(path), str(path))


def parse(model: type[Model], content: Any, where: str) -> Model:
    """Validates plain values against a specification.

    Args:
        model: the specification's class.
        content: what a YAML file held.
        where: file, or file and key, for the messages.

    Raises:
        UserError: one line per problem: file, key, what was expected, the nearest valid key.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = [f"{where}: {_explain(model, problem)}" for problem in error.errors()]
        raise UserError("\n".join(lines)) from None


def _explain(model: type[BaseModel], problem: Any) -> str:
    """One pydantic error in the words of the YAML file."""
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}{nearest(path[-1], _fields_at(model, path[:-1]))}"
    if problem["type"] == "missing":
        return f"key {key!r} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: {message} (got {problem['input']!r})"


def _fields_at(model: type[BaseModel], path: list[str]) -> set[str]:
    """Field names of the specification that stands at ``path`` inside ``model``."""
    here = [model]
    for part in path:
        if issubclass(here[0], RootModel):
            here = _models_in(here[0].model_fields["root"].annotation)
        field = next((m.model_fields[part] for m in here if part in m.model_fields), None)
        if field:
            here = _models_in(field.annotation) or here
        # The tag of a union chooses among its classes; positions in lists and keys of mappings
        # stay with the class of their values.
        here = [m for m in here if part in _tags(m)] or here
    return {name for m in here for name in m.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Specification classes inside ``X``, ``X | None``, ``list[X]``, ``dict[str, X]`` ..."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in typing.get_args(annotation) for m in _models_in(inner)]


def _tags(model: type[BaseModel]) -> set[Any]:
    """Values of the fields that can have one value only: what tells classes of a union apart."""
    choices = (typing.get_args(field.annotation) for field in model.model_fields.values())
    return {values[0] for values in choices if len(values) == 1}
