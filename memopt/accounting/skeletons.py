"""Skeletons: the parameters that a configuration describes, on the meta device.

A skeleton holds the parameters of the transformers or diffusers model of the same configuration,
under the same names and in the same kinds of layers, so that methods treat it alike. It has no
``forward``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from memopt.errors import unknown


class ConfigError(ValueError):
    """A model configuration that cannot be read, or lacks what its family needs."""


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

    def sizes(self, key: str) -> list[int]:
        values = self.config.get(key)
        if not isinstance(values, (list, tuple)) or not values:
            raise ConfigError(f"field {key!r} is {values!r}; expected a list of positive integers")
        return [_Fields({key: value}).size(key) for value in values]

    def blocks(self, key: str, count: int) -> list[bool]:
        """Whether each block of a UNet has attention, from the names of the blocks."""
        values = self.config.get(key)
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise ConfigError(f"field {key!r} is {values!r}; expected {count} names of blocks")
        known = {"DownBlock2D", "UpBlock2D", "AttnDownBlock2D", "AttnUpBlock2D"}
        for value in values:
            if value not in known:
                raise unknown(f"block in {key!r}", str(value), known)
        return [value.startswith("Attn") for value in values]

    def part(self, key: str) -> _Fields:
        """The fields of a model within the model."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            raise ConfigError(f"field {key!r} is {value!r}; expected the fields of a configuration")
        return _Fields(value)

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.config.get(key, default))


def skeleton(config: Mapping[str, Any]) -> nn.Module:
    """Builds the parameters that a configuration describes, on the meta device.

    Families, by ``model_type`` (transformers) or ``_class_name`` (diffusers): ``llama``,
    ``mistral`` and ``qwen2`` (causal language model), ``bert`` and ``roberta`` (encoder with
    pooler, no task head), ``UNet2DModel`` (residual and attention blocks, as DDPM has them). For
    any other, build the real model under ``torch.device("meta")`` and pass that.

    Raises:
        ConfigError: other family, or a field is missing or no positive integer.
    """
    family = config.get("model_type", config.get("_class_name"))
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


def _attention(head_dim: int, **children: nn.Module) -> nn.Module:
    """A `_tree` that knows the size of its heads, as transformers' attention does."""
    node = _tree(**children)
    node.head_dim = head_dim  # type: ignore[assignment]
    return node


class _Causal(nn.Module):
    """Body and output head of a causal language model; the head is found as in transformers."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model = body
        self.lm_head = head

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


def _qwen2(fields: _Fields) -> nn.Module:
    """LLaMA with biases on query, key and value, whatever the configuration says."""
    return _llama(fields, qkv_bias=True)


def _llama(fields: _Fields, qkv_bias: bool = False) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    heads = fields.size("num_attention_heads")
    width = fields.size("head_dim", max(hidden // heads, 1))
    query, key = heads * width, fields.size("num_key_value_heads", heads) * width
    output_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    qkv_bias = qkv_bias or output_bias

    def layer() -> nn.Module:
        return _tree(
            self_attn=_attention(
                width,
                q_proj=nn.Linear(hidden, query, qkv_bias),
                k_proj=nn.Linear(hidden, key, qkv_bias),
                v_proj=nn.Linear(hidden, key, qkv_bias),
                o_proj=nn.Linear(query, hidden, output_bias),
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
    width = max(hidden // fields.size("num_attention_heads"), 1)

    def output(width: int) -> nn.Module:
        return _tree(dense=nn.Linear(width, hidden), LayerNorm=nn.LayerNorm(hidden))

    def layer() -> nn.Module:
        projections = {name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
        return _tree(
            attention=_tree(self=_attention(width, **projections), output=output(hidden)),
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


def _unet_head(fields: _Fields, channels: int) -> int:
    """Channels of an attention head: 8 by default, all of them where the field is null."""
    null = "attention_head_dim" in fields.config and fields.config["attention_head_dim"] is None
    return fields.size("attention_head_dim", channels if null else 8)


def _unet(fields: _Fields) -> nn.Module:
    widths, layers = fields.sizes("block_out_channels"), fields.size("layers_per_block")
    time = 4 * widths[0]

    def residual(channels: int, out: int) -> nn.Module:
        parts = {
            "norm1": nn.GroupNorm(1, channels),
            "conv1": nn.Conv2d(channels, out, 3),
            "time_emb_proj": nn.Linear(time, out),
            "norm2": nn.GroupNorm(1, out),
            "conv2": nn.Conv2d(out, out, 3),
        }
        if channels != out:
            parts["conv_shortcut"] = nn.Conv2d(channels, out, 1)
        return _tree(**parts)

    def attention(channels: int) -> nn.Module:
        projections = {n: nn.Linear(channels, channels) for n in ("to_q", "to_k", "to_v")}
        to_out = nn.ModuleList([nn.Linear(channels, channels)])
        norm = nn.GroupNorm(1, channels)
        width = _unet_head(fields, channels)
        return _attention(width, group_norm=norm, **projections, to_out=to_out)

    def block(inputs: list[int], out: int, attends: bool, sampler: str | None) -> nn.Module:
        parts: dict[str, nn.Module] = {}
        if attends:
            parts["attentions"] = nn.ModuleList(attention(out) for _ in inputs)
        parts["resnets"] = nn.ModuleList(residual(channels, out) for channels in inputs)
        if sampler:
            parts[sampler] = nn.ModuleList([_tree(conv=nn.Conv2d(out, out, 3))])
        return _tree(**parts)

    down, up, last = nn.ModuleList(), nn.ModuleList(), len(widths) - 1
    attends = fields.blocks("down_block_types", len(widths))
    for i, out in enumerate(widths):
        inputs = [widths[max(i - 1, 0)], *[out] * (layers - 1)]
        down.append(block(inputs, out, attends[i], "downsamplers" if i < last else None))
    attends = fields.blocks("up_block_types", len(widths))
    falling = widths[::-1]
    for i, out in enumerate(falling):
        # each layer also takes the output of its mirror image on the way down
        before, mirrored = falling[max(i - 1, 0)], falling[min(i + 1, last)]
        inputs = [before + out, *[2 * out] * (layers - 1), out + mirrored]
        up.append(block(inputs, out, attends[i], "upsamplers" if i < last else None))
    return _tree(
        conv_in=nn.Conv2d(fields.size("in_channels"), widths[0], 3),
        time_embedding=_tree(linear_1=nn.Linear(widths[0], time), linear_2=nn.Linear(time, time)),
        down_blocks=down,
        up_blocks=up,
        mid_block=_tree(
            attentions=nn.ModuleList([attention(widths[-1])]),
            resnets=nn.ModuleList(residual(widths[-1], widths[-1]) for _ in range(2)),
        ),
        conv_norm_out=nn.GroupNorm(1, widths[0]),
        conv_out=nn.Conv2d(widths[0], fields.size("out_channels"), 3),
    )


def _clip_vision(fields: _Fields) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    patch = fields.size("patch_size")
    places = (fields.size("image_size") // patch) ** 2 + 1
    head_dim = hidden // fields.size("num_attention_heads")

    def layer() -> nn.Module:
        names = ("k_proj", "v_proj", "q_proj", "out_proj")
        return _tree(
            self_attn=_attention(head_dim, **{name: nn.Linear(hidden, hidden) for name in names}),
            layer_norm1=nn.LayerNorm(hidden),
            mlp=_tree(fc1=nn.Linear(hidden, inner), fc2=nn.Linear(inner, hidden)),
            layer_norm2=nn.LayerNorm(hidden),
        )

    embeddings = _tree(
        patch_embedding=nn.Conv2d(3, hidden, patch, patch, bias=False),
        position_embedding=nn.Embedding(places, hidden),
    )
    embeddings.class_embedding = nn.Parameter(torch.empty(hidden))
    layers = nn.ModuleList(layer() for _ in range(fields.size("num_hidden_layers")))
    return _tree(
        embeddings=embeddings,
        pre_layrnorm=nn.LayerNorm(hidden),  # the model's own spelling
        encoder=_tree(layers=layers),
        post_layernorm=nn.LayerNorm(hidden),
    )


def _llava(fields: _Fields) -> nn.Module:
    vision, text = fields.part("vision_config"), fields.part("text_config")
    language: Any = _llama(text)
    width = text.size("hidden_size")
    projector = _tree(
        linear_1=nn.Linear(vision.size("hidden_size"), width), linear_2=nn.Linear(width, width)
    )
    body = _tree(
        vision_tower=_clip_vision(vision),
        multi_modal_projector=projector,
        language_model=language.model,
    )
    return _Causal(body, language.lm_head)


def _sit(fields: _Fields) -> nn.Module:
    """The official code's transformer, with the projector that REPA adds for training."""
    hidden, channels = fields.size("hidden_size"), fields.size("in_channels")
    patch, inner = fields.size("patch_size"), fields.size("mlp_ratio") * hidden
    places = (fields.size("input_size") // patch) ** 2
    head_dim = hidden // fields.size("num_heads")
    projector, feature = fields.size("projector_dim"), fields.size("z_dim")

    def block() -> nn.Module:
        return _tree(
            attn=_attention(
                head_dim, qkv=nn.Linear(hidden, 3 * hidden), proj=nn.Linear(hidden, hidden)
            ),
            mlp=_tree(fc1=nn.Linear(hidden, inner), fc2=nn.Linear(inner, hidden)),
            adaLN_modulation=nn.ModuleList([nn.SiLU(), nn.Linear(hidden, 6 * hidden)]),
        )

    def stack(*widths: int) -> nn.Module:
        pairs = zip(widths, widths[1:], strict=False)
        return nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    final = _tree(
        linear=nn.Linear(hidden, patch * patch * channels),
        adaLN_modulation=nn.ModuleList([nn.SiLU(), nn.Linear(hidden, 2 * hidden)]),
    )
    model = _tree(
        x_embedder=_tree(proj=nn.Conv2d(channels, hidden, patch, patch)),
        t_embedder=_tree(mlp=stack(256, hidden, hidden)),
        y_embedder=_tree(embedding_table=nn.Embedding(fields.size("num_classes") + 1, hidden)),
        blocks=nn.ModuleList(block() for _ in range(fields.size("depth"))),
        projectors=nn.ModuleList([stack(hidden, projector, projector, feature)]),
        final_layer=final,
    )
    model.pos_embed = nn.Parameter(torch.empty(1, places, hidden), requires_grad=False)
    return model


_FAMILIES = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "bert": _bert,
    "roberta": _bert,
    "llava": _llava,
    "SiT": _sit,
    "UNet2DModel": _unet,
}
