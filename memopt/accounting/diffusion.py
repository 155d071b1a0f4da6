"""Skeletons of diffusion models: UNets and ControlNets as diffusers has them, and SiT."""

from __future__ import annotations

import torch
from torch import nn

from memopt.accounting.fields import Fields, attending, tree


def _residual(channels: int, out: int, time: int) -> nn.Module:
    parts = {
        "norm1": nn.GroupNorm(1, channels),
        "conv1": nn.Conv2d(channels, out, 3),
        "time_emb_proj": nn.Linear(time, out),
        "norm2": nn.GroupNorm(1, out),
        "conv2": nn.Conv2d(out, out, 3),
    }
    if channels != out:
        parts["conv_shortcut"] = nn.Conv2d(channels, out, 1)
    return tree(**parts)


def _head(fields: Fields, channels: int) -> int:
    """Channels of an attention head: 8 by default, all of them where the field is null."""
    null = "attention_head_dim" in fields.config and fields.config["attention_head_dim"] is None
    return fields.size("attention_head_dim", channels if null else 8)


def _attention(fields: Fields, channels: int) -> nn.Module:
    """Attention of pixels to each other, with biases."""
    projections = {n: nn.Linear(channels, channels) for n in ("to_q", "to_k", "to_v")}
    to_out = nn.ModuleList([nn.Linear(channels, channels)])
    norm = nn.GroupNorm(1, channels)
    return attending(_head(fields, channels), group_norm=norm, **projections, to_out=to_out)


def _transformer(fields: Fields, channels: int, depth: int) -> nn.Module:
    """Blocks that attend to each other and to the condition, between two projections."""
    context = fields.size("cross_attention_dim")
    linear = fields.flag("use_linear_projection")
    head = max(channels // _heads(fields, channels), 1)

    def attention(keys: int) -> nn.Module:
        return attending(
            head,
            to_q=nn.Linear(channels, channels, bias=False),
            to_k=nn.Linear(keys, channels, bias=False),
            to_v=nn.Linear(keys, channels, bias=False),
            to_out=nn.ModuleList([nn.Linear(channels, channels)]),
        )

    def block() -> nn.Module:
        norms = {f"norm{number}": nn.LayerNorm(channels) for number in (1, 2, 3)}
        gated = tree(proj=nn.Linear(channels, 8 * channels))
        inner = nn.ModuleList([gated, nn.Dropout(), nn.Linear(4 * channels, channels)])
        feed = tree(net=inner)
        return tree(**norms, attn1=attention(channels), attn2=attention(context), ff=feed)

    def outer() -> nn.Module:
        return nn.Linear(channels, channels) if linear else nn.Conv2d(channels, channels, 1)

    return tree(
        norm=nn.GroupNorm(1, channels),
        proj_in=outer(),
        transformer_blocks=nn.ModuleList(block() for _ in range(depth)),
        proj_out=outer(),
    )


def _heads(fields: Fields, channels: int) -> int:
    """Heads of a conditional model: its field of that name holds numbers of heads, one a level."""
    value = fields.config.get("attention_head_dim", 8)
    if isinstance(value, int):
        return value
    return fields.sizes("attention_head_dim")[fields.sizes("block_out_channels").index(channels)]


class _Levels:
    """The blocks of a UNet's resolutions, with attention of the kind that the model has."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.widths = fields.sizes("block_out_channels")
        self.layers = fields.size("layers_per_block")
        self.time = 4 * self.widths[0]
        depths = fields.config.get("transformer_layers_per_block", 1)
        levels = len(self.widths)
        self.depths = [depths] * levels if isinstance(depths, int) else list(depths)

    def attention(self, level: int) -> nn.Module:
        channels = self.widths[level]
        if self.fields.config.get("cross_attention_dim") is None:
            return _attention(self.fields, channels)
        return _transformer(self.fields, channels, self.depths[level])

    def block(self, inputs: list[int], level: int, attends: bool, sampler: str | None) -> nn.Module:
        out = self.widths[level]
        parts: dict[str, nn.Module] = {}
        if attends:
            parts["attentions"] = nn.ModuleList(self.attention(level) for _ in inputs)
        parts["resnets"] = nn.ModuleList(_residual(size, out, self.time) for size in inputs)
        if sampler:
            parts[sampler] = nn.ModuleList([tree(conv=nn.Conv2d(out, out, 3))])
        return tree(**parts)

    def head(self) -> dict[str, nn.Module]:
        """First convolution, embedding of the time step, the way down and the middle."""
        widths, last = self.widths, len(self.widths) - 1
        attends = self.fields.blocks("down_block_types", len(widths))
        down = nn.ModuleList()
        for i, out in enumerate(widths):
            inputs = [widths[max(i - 1, 0)], *[out] * (self.layers - 1)]
            down.append(self.block(inputs, i, attends[i], "downsamplers" if i < last else None))
        wide = widths[-1]
        return {
            "conv_in": nn.Conv2d(self.fields.size("in_channels"), widths[0], 3),
            "time_embedding": _embedding(widths[0], self.time),
            "down_blocks": down,
            "mid_block": tree(
                attentions=nn.ModuleList([self.attention(last)]),
                resnets=nn.ModuleList(_residual(wide, wide, self.time) for _ in range(2)),
            ),
        }

    def up(self) -> nn.Module:
        """The way up."""
        up, last = nn.ModuleList(), len(self.widths) - 1
        attends = self.fields.blocks("up_block_types", len(self.widths))
        falling = self.widths[::-1]
        for i, out in enumerate(falling):
            # each layer also takes the output of its mirror image on the way down
            before, mirrored = falling[max(i - 1, 0)], falling[min(i + 1, last)]
            inputs = [before + out, *[2 * out] * (self.layers - 1), out + mirrored]
            sampler = "upsamplers" if i < last else None
            up.append(self.block(inputs, last - i, attends[i], sampler))
        return up


def _embedding(inputs: int, width: int) -> nn.Module:
    return tree(linear_1=nn.Linear(inputs, width), linear_2=nn.Linear(width, width))


def unet(fields: Fields) -> nn.Module:
    """A UNet, with transformers for a condition where the configuration has its width."""
    levels = _Levels(fields)
    first = levels.widths[0]
    return tree(
        **levels.head(),
        up_blocks=levels.up(),
        conv_norm_out=nn.GroupNorm(1, first),
        conv_out=nn.Conv2d(first, fields.size("out_channels"), 3),
    )


def controlnet(fields: Fields) -> nn.Module:
    """The way down and the middle of a conditional UNet, and what adds them to a frozen one."""
    levels = _Levels(fields)
    widths, hints = levels.widths, fields.sizes("conditioning_embedding_out_channels")
    parts = levels.head()
    if fields.config.get("addition_embed_type") is not None:
        extra = fields.size("projection_class_embeddings_input_dim")
        parts["add_embedding"] = _embedding(extra, levels.time)
    steps = [size for pair in zip(hints, hints[1:], strict=False) for size in pair]
    pairs = zip([hints[0], *steps], steps, strict=False)
    parts["controlnet_cond_embedding"] = tree(
        conv_in=nn.Conv2d(fields.size("conditioning_channels", 3), hints[0], 3),
        blocks=nn.ModuleList(nn.Conv2d(before, after, 3) for before, after in pairs),
        conv_out=nn.Conv2d(hints[-1], widths[0], 3),
    )
    # one for the first convolution, one a layer, one a change of resolution
    taps = [widths[0]]
    for i, width in enumerate(widths):
        taps += [width] * (levels.layers + (i < len(widths) - 1))
    parts["controlnet_down_blocks"] = nn.ModuleList(nn.Conv2d(n, n, 1) for n in taps)
    parts["controlnet_mid_block"] = nn.Conv2d(widths[-1], widths[-1], 1)
    return tree(**parts)


def sit(fields: Fields) -> nn.Module:
    """The official code's transformer, with the projector that REPA adds for training."""
    hidden, channels = fields.size("hidden_size"), fields.size("in_channels")
    patch, inner = fields.size("patch_size"), fields.size("mlp_ratio") * hidden
    places = (fields.size("input_size") // patch) ** 2
    head_dim = hidden // fields.size("num_heads")
    projector, feature = fields.size("projector_dim"), fields.size("z_dim")

    def block() -> nn.Module:
        return tree(
            attn=attending(
                head_dim, qkv=nn.Linear(hidden, 3 * hidden), proj=nn.Linear(hidden, hidden)
            ),
            mlp=tree(fc1=nn.Linear(hidden, inner), fc2=nn.Linear(inner, hidden)),
            adaLN_modulation=nn.ModuleList([nn.SiLU(), nn.Linear(hidden, 6 * hidden)]),
        )

    def stack(*widths: int) -> nn.Module:
        pairs = zip(widths, widths[1:], strict=False)
        return nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    final = tree(
        linear=nn.Linear(hidden, patch * patch * channels),
        adaLN_modulation=nn.ModuleList([nn.SiLU(), nn.Linear(hidden, 2 * hidden)]),
    )
    model = tree(
        x_embedder=tree(proj=nn.Conv2d(channels, hidden, patch, patch)),
        t_embedder=tree(mlp=stack(256, hidden, hidden)),
        y_embedder=tree(embedding_table=nn.Embedding(fields.size("num_classes") + 1, hidden)),
        blocks=nn.ModuleList(block() for _ in range(fields.size("depth"))),
        projectors=nn.ModuleList([stack(hidden, projector, projector, feature)]),
        final_layer=final,
    )
    model.pos_embed = nn.Parameter(torch.empty(1, places, hidden), requires_grad=False)
    return model
