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

from memopt.accounting.diffusion import controlnet, sit, unet
from memopt.accounting.fields import ConfigError, Fields, attending, tree


def skeleton(config: Mapping[str, Any]) -> nn.Module:
    """Builds the parameters that a configuration describes, on the meta device.

    Families, by ``model_type`` (transformers) or ``_class_name`` (diffusers): ``llama``,
    ``mistral`` and ``qwen2`` (causal language model), ``bert`` and ``roberta`` (encoder with
    pooler, no task head), ``llava``; ``UNet2DModel`` (residual and attention blocks, as DDPM has
    them), ``UNet2DConditionModel`` and ``ControlNetModel`` (transformers in their place), ``SiT``.
    For any other, build the real model under ``torch.device("meta")`` and pass that.

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
        return _FAMILIES[family](Fields(config))


class _Causal(nn.Module):
    """Body and output head of a causal language model; the head is found as in transformers."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model = body
        self.lm_head = head

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


def _qwen2(fields: Fields) -> nn.Module:
    """LLaMA with biases on query, key and value, whatever the configuration says."""
    return _llama(fields, qkv_bias=True)


def _llama(fields: Fields, qkv_bias: bool = False) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    heads = fields.size("num_attention_heads")
    width = fields.size("head_dim", max(hidden // heads, 1))
    query, key = heads * width, fields.size("num_key_value_heads", heads) * width
    output_bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    qkv_bias = qkv_bias or output_bias

    def layer() -> nn.Module:
        return tree(
            self_attn=attending(
                width,
                q_proj=nn.Linear(hidden, query, qkv_bias),
                k_proj=nn.Linear(hidden, key, qkv_bias),
                v_proj=nn.Linear(hidden, key, qkv_bias),
                o_proj=nn.Linear(query, hidden, output_bias),
            ),
            mlp=tree(
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
    body = tree(embed_tokens=embedding, layers=layers, norm=nn.RMSNorm(hidden))
    return _Causal(body, head)


def _bert(fields: Fields) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    width = max(hidden // fields.size("num_attention_heads"), 1)

    def output(width: int) -> nn.Module:
        return tree(dense=nn.Linear(width, hidden), LayerNorm=nn.LayerNorm(hidden))

    def layer() -> nn.Module:
        projections = {name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
        return tree(
            attention=tree(self=attending(width, **projections), output=output(hidden)),
            intermediate=tree(dense=nn.Linear(hidden, inner)),
            output=output(inner),
        )

    embeddings = tree(
        word_embeddings=nn.Embedding(fields.size("vocab_size"), hidden),
        position_embeddings=nn.Embedding(fields.size("max_position_embeddings"), hidden),
        token_type_embeddings=nn.Embedding(fields.size("type_vocab_size"), hidden),
        LayerNorm=nn.LayerNorm(hidden),
    )
    layers = nn.ModuleList(layer() for _ in range(fields.size("num_hidden_layers")))
    pooler = tree(dense=nn.Linear(hidden, hidden))
    return tree(embeddings=embeddings, encoder=tree(layer=layers), pooler=pooler)


def _clip_vision(fields: Fields) -> nn.Module:
    hidden, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    patch = fields.size("patch_size")
    places = (fields.size("image_size") // patch) ** 2 + 1
    head_dim = hidden // fields.size("num_attention_heads")

    def layer() -> nn.Module:
        names = ("k_proj", "v_proj", "q_proj", "out_proj")
        return tree(
            self_attn=attending(head_dim, **{name: nn.Linear(hidden, hidden) for name in names}),
            layer_norm1=nn.LayerNorm(hidden),
            mlp=tree(fc1=nn.Linear(hidden, inner), fc2=nn.Linear(inner, hidden)),
            layer_norm2=nn.LayerNorm(hidden),
        )

    embeddings = tree(
        patch_embedding=nn.Conv2d(3, hidden, patch, patch, bias=False),
        position_embedding=nn.Embedding(places, hidden),
    )
    embeddings.class_embedding = nn.Parameter(torch.empty(hidden))
    layers = nn.ModuleList(layer() for _ in range(fields.size("num_hidden_layers")))
    return tree(
        embeddings=embeddings,
        pre_layrnorm=nn.LayerNorm(hidden),  # the model's own spelling
        encoder=tree(layers=layers),
        post_layernorm=nn.LayerNorm(hidden),
    )


def _llava(fields: Fields) -> nn.Module:
    vision, text = fields.part("vision_config"), fields.part("text_config")
    language: Any = _llama(text)
    width = text.size("hidden_size")
    projector = tree(
        linear_1=nn.Linear(vision.size("hidden_size"), width), linear_2=nn.Linear(width, width)
    )
    body = tree(
        vision_tower=_clip_vision(vision),
        multi_modal_projector=projector,
        language_model=language.model,
    )
    return _Causal(body, language.lm_head)


_FAMILIES = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "bert": _bert,
    "roberta": _bert,
    "llava": _llava,
    "SiT": sit,
    "UNet2DModel": unet,
    "UNet2DConditionModel": unet,
    "ControlNetModel": controlnet,
}
