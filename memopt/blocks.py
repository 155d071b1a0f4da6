"""Which numbers of a model share one second moment under Adam-mini, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from math import prod
from typing import Any, Literal, NamedTuple

from torch import nn

from memopt.errors import UnsupportedCombination, unknown
from memopt.params import ParameterGroups

Block = int | Literal["rows", "element", "tensor"]
WORDS = ("rows", "element", "tensor")

# attributes of an attention module, in the libraries' words
QUERY_KEY = (
    ("q_proj", "k_proj"), ("query", "key"), ("wq", "wk"), ("q_lin", "k_lin"), ("to_q", "to_k"),
    ("q", "k"),
)  # fmt: skip
FUSED = ("qkv", "qkv_proj", "query_key_value", "Wqkv", "wqkv")
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


class Choice(NamedTuple):
    """The block of one parameter, why, and whether weight decay applies."""

    block: Block
    reason: str
    decays: bool = True


class BlockGroups(ParameterGroups):
    """Groups of equal blocks, with the reason for each parameter."""

    def describe(self) -> str:
        """One line a parameter, in the model's order: blocks, shape, name, reason."""
        lines = {
            name: f"{prod(blocks_of(tuple(param.shape), group['block'])):>10,} for "
            f"{tuple(param.shape)!s:16} {name}: {self.reasons[name]}"
            for group in self
            for name, param in group["params"]
        }
        return "\n".join(lines[name] for name in self.reasons)


def blocks_of(shape: tuple[int, ...], block: Block, name: str = "") -> tuple[int, ...]:
    """Shape of the second moment: one number a block.

    Args:
        shape: the parameter's.
        block: see `memopt.AdamMini`.
        name: the parameter's, for the message.

    Raises:
        ValueError: no such block, or it does not divide the rows.
    """
    if block == "rows":
        return shape[:1] if len(shape) > 1 else shape
    if block == "element":
        return shape
    if block == "tensor":
        return ()
    if isinstance(block, bool) or not isinstance(block, int):
        raise unknown("block", str(block), WORDS)
    rows = shape[0] if shape else 1
    if block < 1 or rows % block:
        raise ValueError(
            f"a block of {block} rows does not divide the {rows} rows of {name or 'a weight'} "
            f"{shape}; give the size of its attention heads (head_dim), or another block."
        )
    return (rows // block,)


def block_groups(
    model: nn.Module,
    head_dim: int | None = None,
    blocks: Mapping[str, Block] | None = None,
) -> BlockGroups:
    """Adam-mini's partition of a model, from its modules.

    Query and key: one block a head. Value, output projection, MLP: one an output neuron.
    Embedding and output layer: one a token. Convolution: one an output channel. Norms: one for the
    tensor. Biases, and whatever has no known kind: plain Adam. No decay for norms and biases.

    An attention module is one that holds a linear query and key side by side under names of
    `QUERY_KEY` (or both in one layer of `FUSED`, or is a ``nn.MultiheadAttention``). The size of
    its heads is its own ``head_dim`` or ``attention_head_size``; or the query's rows over its
    number of heads; or the same from ``model.config``. Keys with fewer heads (grouped queries)
    have fewer blocks.

    Args:
        model: any module. Frozen parameters are included, tied ones once.
        head_dim: rows of one attention head, for models whose modules do not tell.
        blocks: parameter name, or pattern with ``*``, to block (see `memopt.AdamMini`), for modules
            that this function cannot know; it goes before all rules.

    Returns:
        Groups for `memopt.AdamMini`; ``describe()`` prints the partition and its reasons.

    Raises:
        ValueError: heads of unknown size, a block that does not divide a weight's rows, or a
            pattern that matches nothing.
        UnsupportedCombination: a layer whose outputs are not rows (transformers' ``Conv1D``).
    """
    names = {id(param): name for name, param in model.named_parameters()}
    chosen = _given(model, blocks or {})
    for path, module in model.named_modules():
        for own, param in module.named_parameters(recurse=False):
            name = names[id(param)]
            if name not in chosen:
                chosen[name] = _choice(model, path, own, head_dim)
    reasons: dict[str, str] = {}
    merged: dict[tuple[Block, bool], dict[str, Any]] = {}
    for name, param in model.named_parameters():
        choice = chosen[name]
        reasons[name] = choice.reason
        blocks_of(tuple(param.shape), choice.block, repr(name))
        group = merged.setdefault((choice.block, choice.decays), {"params": []})
        group["params"].append((name, param))
        group["block"] = choice.block
        if not choice.decays:
            group["weight_decay"] = 0.0
    return BlockGroups(merged.values(), reasons)


def _given(model: nn.Module, blocks: Mapping[str, Block]) -> dict[str, Choice]:
    names = [name for name, _ in model.named_parameters()]
    chosen: dict[str, Choice] = {}
    for pattern, block in blocks.items():
        matching = [name for name in names if fnmatch(name, pattern)]
        if not matching:
            raise unknown("parameter", pattern, names)
        for name in matching:
            chosen.setdefault(name, Choice(block, f"given for {pattern!r}"))
    return chosen


def _choice(model: nn.Module, path: str, own: str, head_dim: int | None) -> Choice:
    """The block of parameter ``own`` of the module at ``path``."""
    module = model.get_submodule(path)
    kind = type(module).__name__
    if own.endswith("bias"):
        return Choice("element", "bias: plain Adam", decays=False)
    if "norm" in kind.lower():
        return Choice("tensor", "norm: one block", decays=False)
    if any(ancestor.__name__ == "Conv1D" for ancestor in type(module).__mro__):
        raise UnsupportedCombination(
            f"{path}.{own} is the weight of transformers' Conv1D, whose outputs are columns; give "
            f"its block yourself, for example blocks={{'{path}.{own}': 'element'}} (plain Adam)."
        )
    if isinstance(module, nn.Embedding):
        return Choice(1, "embedding: one block a token")
    if isinstance(module, nn.MultiheadAttention):
        return _of_multihead(module, own)
    if isinstance(module, nn.Linear):
        return _of_linear(model, path, module, head_dim)
    if isinstance(module, nn.modules.conv._ConvNd) and not module.transposed:
        return Choice(1, "convolution: one block an output channel")
    return Choice("element", f"of a {kind}, which this partition does not know: plain Adam")


def _of_multihead(module: nn.MultiheadAttention, own: str) -> Choice:
    if own == "v_proj_weight":
        return Choice(1, "value: one block an output neuron")
    if own == "in_proj_weight":
        return Choice(module.head_dim, "query, key and value in one: one block a head")
    if own in ("q_proj_weight", "k_proj_weight"):
        return Choice(module.head_dim, "query or key: one block a head")
    return Choice("element", "of a MultiheadAttention, neither weight nor bias: plain Adam")


def _of_linear(model: nn.Module, path: str, module: nn.Linear, head_dim: int | None) -> Choice:
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if module is head:
        return Choice(1, "output layer: one block a token")
    parent_path, _, attribute = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    pair = next(_pairs(parent), None)
    if attribute in FUSED:
        size = head_dim or _head_size(model, parent, None, path)
        return Choice(size, "query, key and value in one: one block a head")
    if pair is not None and attribute in pair:
        query = parent.get_submodule(pair[0])
        size = head_dim or _head_size(model, parent, query, path)
        role = "query" if attribute == pair[0] else "key"
        return Choice(size, f"{role} of attention: one block a head of {size} rows")
    return Choice(1, "linear layer: one block an output neuron")


def _pairs(parent: nn.Module) -> Iterator[tuple[str, str]]:
    """Names under which a module holds a linear query and key."""
    for pair in QUERY_KEY:
        if all(isinstance(getattr(parent, name, None), nn.Linear) for name in pair):
            yield pair


def _head_size(model: nn.Module, attention: nn.Module, query: Any, path: str) -> int:
    """Rows of one head, as the attention module or the model's configuration tells."""
    config = getattr(model, "config", None)
    for source in (attention, config):
        size = _number(source, HEAD_SIZES)
        if size:
            return size
        heads = _number(source, HEAD_COUNTS)
        width = query.out_features if query is not None else _number(config, ("hidden_size",))
        if heads and width and width % heads == 0:
            return width // heads
    raise ValueError(
        f"{path!r} is a query or key of attention, but neither its module nor the model's config "
        "tells the size of a head; pass head_dim=..., the rows of one head."
    )


def _number(source: Any, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a positive integer."""
    values = (getattr(source, name, None) for name in names)
    return next((v for v in values if isinstance(v, int) and v > 0), None)
