"""Model shapes: named ones, Hugging Face configurations, and their tensors on the meta device.

Nothing here allocates a weight. The modules built are skeletons: they hold the parameters of the
transformers model of the same configuration, under the same names and in the same kinds of layers,
and have no `forward`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memopt.errors import unknown

SHAPES_FILE = Path(__file__).with_name("shapes.toml")


class ConfigError(ValueError):
    """A model configuration that cannot be read, or lacks what its family needs."""


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
        ConfigError: the file is no JSON object.
    """
    path = Path(source)
    if not path.exists():
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
    if isinstance(model, (str, Path)):
        return skeleton(read(model))
    if isinstance(model, Mapping):
        return skeleton(model)
    if hasattr(model, "to_dict"):
        return skeleton(model.to_dict())
    raise TypeError(
        f"model is a {type(model).__name__}; expected a torch module, a shape's name, a "
        "configuration (object, mapping, JSON file or directory)"
    )


class _Fields:
    """Integer and flag fields of a configuration, with errors that name the missing one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def size(self, key: str, default: int | None = None) -> int:
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

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.config.get(key, default))


def skeleton(config: Mapping[str, Any]) -> nn.Module:
    """Builds the parameters that a configuration describes, on the meta device.

    Families: ``llama`` and ``mistral`` (causal language model), ``bert`` and ``roberta`` (encoder
    with pooler, no task head). For any other, build the real model under
    ``torch.device("meta")`` and pass that.

    Raises:
        ConfigError: other family, or a field is missing or no positive integer.
    """
    family = config.get("model_type")
    if family not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise ConfigError(
            f"field 'model_type' is {family!r}; skeletons exist for {known}. For another family "
            "build the model under torch.device('meta') and pass the module itself."
        )
    with torch.device("meta"):
        return _FAMILIES[family](_Fields(config))


def _tree(**children: nn.Module) -> nn.Module:
    """A module that only holds children, as transformers' blocks do."""
    node = nn.Module()
    for name, child in children.items():
        node.add_module(name, child)
    return node


class _Causal(nn.Module):
    """Body and output head of a causal language model; the head is found as in transformers."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model = body
        self.lm_head = head

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


def _llama(fields: _Fields) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    heads = fields.size("num_attention_heads")
    width = fields.size("head_dim", max(hidden // heads, 1))
    query, key = heads * width, fields.size("num_key_value_heads", heads) * width
    attention_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")

    def layer() -> nn.Module:
        return _tree(
            self_attn=_tree(
                q_proj=nn.Linear(hidden, query, attention_bias),
                k_proj=nn.Linear(hidden, key, attention_bias),
                v_proj=nn.Linear(hidden, key, attention_bias),
                o_proj=nn.Linear(query, hidden, attention_bias),
            ),
            mlp=_tree(
                gate_proj=nn.Linear(hidden, inner, mlp_bias),
                up_proj=nn.Linear(hidden, inner, mlp_bias),
                down_proj=nn.Linear(inner, hidden, mlp_bias),
            ),
            input_layernorm=nn.RMSNorm(hidden),
            post_attention_layernorm=nn.RMSNorm(hidden),
        )

    embedding = nn.Embedding(fields.size("vocab_size"), hidden)
    head = nn.Linear(hidden, fields.size("vocab_size"), bias=False)
    if fields.flag("tie_word_embeddings"):
        head.weight = embedding.weight
    layers = nn.ModuleList(layer() for _ in range(fields.size("num_hidden_layers")))
    body = _tree(embed_tokens=embedding, layers=layers, norm=nn.RMSNorm(hidden))
    return _Causal(body, head)


def _bert(fields: _Fields) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")

    def output(width: int) -> nn.Module:
        return _tree(dense=nn.Linear(width, hidden), LayerNorm=nn.LayerNorm(hidden))

    def layer() -> nn.Module:
        projections = {name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
        return _tree(
            attention=_tree(self=_tree(**projections), output=output(hidden)),
            intermediate=_tree(dense=nn.Linear(hidden, inner)),
            output=output(inner),
        )

    embeddings = _tree(
        word_embeddings=nn.Embedding(fields.size("vocab_size"), hidden),
        position_embeddings=nn.Embedding(fields.size("max_position_embeddings"), hidden),
        token_type_embeddings=nn.Embedding(fields.size("type_vocab_size"), hidden),
        LayerNorm=nn.LayerNorm(hidden),
    )
    layers = nn.ModuleList(layer() for _ in range(fields.size("num_hidden_layers")))
    pooler = _tree(dense=nn.Linear(hidden, hidden))
    return _tree(embeddings=embeddings, encoder=_tree(layer=layers), pooler=pooler)


_FAMILIES = {"llama": _llama, "mistral": _llama, "bert": _bert, "roberta": _bert}
