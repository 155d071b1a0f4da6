"""Named shapes and skeletons against transformers' own models and the papers' counts."""

import json

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from memopt import param_groups
from memopt.accounting import shapes

# millions of parameters, from the GWT sheet's table (computed from the papers' configuration files)
PUBLISHED_MILLIONS = {
    "llama_60m": 58.07,
    "llama_130m": 134.11,
    "llama_350m": 367.97,
    "llama_1b": 1339.08,
    "llama_3b": 2685.83,
    "llama_7b": 6738.42,
}
TREATED_MILLIONS = {  # attention and MLP matrices, same table
    "llama_60m": 25.3,
    "llama_130m": 84.9,
    "llama_350m": 302.4,
    "llama_1b": 1207.9,
    "llama_3b": 2521.8,
    "llama_7b": 6476.0,
}
VARIANTS = {  # every field that changes a parameter
    "grouped_query": {"model_type": "llama", "num_key_value_heads": 2, "head_dim": 24},
    "biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "tied": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "bert": {"model_type": "bert", "max_position_embeddings": 40, "type_vocab_size": 3},
    "roberta": {"model_type": "roberta", "max_position_embeddings": 40, "type_vocab_size": 1},
}
TEXT_SHAPES = [name for name in shapes.names() if "model_type" in shapes.named(name)]
UNETS = {"ddpm_cifar10": 35.75, "ddpm_celebahq": 113.67}  # millions, as COAP states them
UNET = shapes.named("ddpm_cifar10")
SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def real(config: dict) -> nn.Module:
    resolved = AutoConfig.for_model(**config)
    causal = config["model_type"] in ("llama", "mistral", "qwen2")
    kind = AutoModelForCausalLM if causal else AutoModel
    if config["model_type"] == "llava":
        kind = AutoModelForImageTextToText
    with torch.device("meta"):
        return kind.from_config(resolved)


def layout(model: nn.Module) -> dict[str, tuple]:
    """Parameter names with shapes and the kind of the layer that holds each."""
    found = {}
    for name, param in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        kind = next((k for k in (nn.Linear, nn.Embedding) if isinstance(owner, k)), None)
        found[name] = (tuple(param.shape), kind)
    return found


def treated(model: nn.Module) -> list[str]:
    groups = param_groups(model)
    return [name for group in groups if group["treated"] for name, _ in group["params"]]


@pytest.mark.parametrize("name", TEXT_SHAPES)
def test_stated_count_is_that_of_transformers(name: str) -> None:
    model = real(shapes.named(name))
    assert sum(p.numel() for p in model.parameters()) == shapes.parameters(name)


@pytest.mark.parametrize("name", TEXT_SHAPES)
def test_named_skeleton_is_transformers_model(name: str) -> None:
    skeleton, model = shapes.module_of(name), real(shapes.named(name))
    assert layout(skeleton) == layout(model)
    assert treated(skeleton) == treated(model)
    assert all(p.is_meta for p in skeleton.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_skeleton_follows_every_field(variant: str) -> None:
    config = SMALL | VARIANTS[variant]
    skeleton, model = shapes.module_of(config), real(config)
    assert layout(skeleton) == layout(model)
    assert treated(skeleton) == treated(model)


@pytest.mark.parametrize("targets", ["auto", "all-linear", ["attn"]])
def test_targets_choose_the_same_in_skeleton_and_model(targets) -> None:
    config = SMALL | {"model_type": "llama"}
    chosen = [
        [name for name, _ in param_groups(model, targets)[0]["params"]]
        for model in (shapes.module_of(config), real(config))
    ]
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("name", PUBLISHED_MILLIONS)
def test_counts_of_the_papers(name: str) -> None:
    model = shapes.module_of(name)
    total = sum(p.numel() for p in model.parameters())
    assert round(total / 1e6, 2) == PUBLISHED_MILLIONS[name]
    matrices = sum(p.numel() for n, p in model.named_parameters() if n in set(treated(model)))
    assert round(matrices / 1e6, 1) == TREATED_MILLIONS[name]


@pytest.mark.parametrize("name", UNETS)
def test_unets_have_the_stated_count(name: str) -> None:
    count = sum(p.numel() for p in shapes.module_of(name).parameters())
    assert count == shapes.parameters(name)
    assert round(count / 1e6, 2) == UNETS[name]


def test_sit_has_the_count_of_its_paper() -> None:
    model = shapes.module_of("sit_xl_2")
    counts = {name: p.numel() for name, p in model.named_parameters()}
    assert sum(counts.values()) == shapes.parameters("sit_xl_2")
    # SiT's paper: 675 M; the projector that REPA adds, by hand; a fixed table of positions
    projector = sum(a * b + b for a, b in ((1152, 2048), (2048, 2048), (2048, 768)))
    own = sum(counts.values()) - projector - 256 * 1152
    assert round(own / 1e6) == 675


def transformer(width: int, context: int, depth: int, outer: int) -> int:
    """Weights of a transformer of latent diffusion, by hand: the norm, two projections, blocks."""
    own, crossed = 4 * width**2 + width, 2 * width**2 + 2 * context * width + width
    gated = width * 8 * width + 8 * width + 4 * width * width + width
    return 2 * width + 2 * (outer + width) + depth * (own + crossed + gated + 3 * 2 * width)


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("ldm_imagenet", "down_blocks.3", transformer(960, 512, 1, 960**2)),
        ("controlnet_sdxl", "down_blocks.2", transformer(1280, 2048, 10, 1280**2)),
        ("controlnet_sdxl", "down_blocks.1", transformer(640, 2048, 2, 640**2)),
    ],
)
def test_transformers_of_diffusion_models(name: str, level: str, expected: int) -> None:
    model = shapes.module_of(name)
    for attention in model.get_submodule(f"{level}.attentions"):
        assert sum(p.numel() for p in attention.parameters()) == expected


def test_latent_diffusion_has_the_counts_of_its_sources() -> None:
    counts = {
        name: sum(p.numel() for p in shapes.module_of(name).parameters())
        for name in ("ldm_imagenet", "controlnet_sdxl")
    }
    assert counts == {name: shapes.parameters(name) for name in counts}
    # arXiv 2112.10752: 400 M; the published float16 file of the ControlNet: 2.5 GB. COAP's figures
    # for two moments of every weight: 3.0 and 9.3 GiB
    assert round(counts["ldm_imagenet"] / 1e6, -1) == 400
    assert round(2 * counts["controlnet_sdxl"] / 1e9, 1) == 2.5
    assert [round(8 * count / 2**30, 1) for count in counts.values()] == [3.0, 9.3]


def test_every_shape_is_checked_against_something() -> None:
    others = ["sit_xl_2", "ldm_imagenet", "controlnet_sdxl"]
    assert sorted([*TEXT_SHAPES, *UNETS, *others]) == sorted(shapes.names())


def test_every_source_of_a_configuration_gives_the_same(tmp_path) -> None:
    config = shapes.named("llama_micro")
    (tmp_path / "config.json").write_text(json.dumps(config))
    sources = [config, AutoConfig.for_model(**config), tmp_path, tmp_path / "config.json"]
    for source in [*sources, str(tmp_path)]:
        assert layout(shapes.module_of(source)) == layout(shapes.module_of("llama_micro"))


def test_named_shape_is_a_copy() -> None:
    shapes.named("llama_micro")["vocab_size"] = 1
    assert shapes.named("llama_micro")["vocab_size"] == 512


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, ["'gpt2'", "llama", "meta"]),
        ({}, ["model_type", "None"]),
        (SMALL | {"model_type": "llama", "vocab_size": None}, ["vocab_size", "no field"]),
        (SMALL | {"model_type": "llama", "hidden_size": "64"}, ["hidden_size", "'64'", "integer"]),
        (SMALL | {"model_type": "llama", "hidden_size": 0}, ["hidden_size", "positive"]),
        (SMALL | {"model_type": "bert"}, ["max_position_embeddings"]),
        (UNET | {"block_out_channels": 8}, ["block_out_channels", "list"]),
        (UNET | {"block_out_channels": [8, -1]}, ["block_out_channels", "-1"]),
        (UNET | {"up_block_types": ["UpBlock2D"]}, ["up_block_types", "4 names"]),
        (UNET | {"down_block_types": ["DownBlock"] * 4}, ["down_block_types", "DownBlock2D"]),
    ],
)
def test_a_bad_configuration_names_its_field(config: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        shapes.module_of(config)
    for word in words:
        assert word in str(caught.value)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'llama_60m'"):
        shapes.module_of("llama_60")


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_file_that_is_no_configuration_is_named(tmp_path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(shapes.ConfigError, match="config.json"):
        shapes.module_of(path)


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        shapes.module_of(7)
