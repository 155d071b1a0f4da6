"""The real model of a configuration, and a batch for it: what a pass over activations needs.

The only place of memopt that uses transformers, and only when it is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from memopt.accounting.skeletons import ConfigError
from memopt.errors import UnsupportedCombination, unknown

ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class Workload:
    """What one step works on; all of it decides the bytes of activations.

    Attributes:
        config: a Hugging Face ``config.json``, as text (so that equal workloads are one key).
        batch: sequences in one micro-batch.
        seq: tokens in a sequence.
        micro_batches: forward and backward passes in one step.
        checkpointing: whether each block's activations are recomputed in backward.
        attention: ``"sdpa"`` (fused, transformers' default) or ``"eager"`` (the matrix of scores
            is kept).

    Raises:
        ValueError: a size below 1, or a sequence longer than the model takes.
        ConfigError: no model of transformers has this configuration.
    """

    config: str
    batch: int
    seq: int
    micro_batches: int = 1
    checkpointing: bool = False
    attention: str = "sdpa"

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "micro_batches"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer above zero, got {value!r}")
        if self.attention not in ATTENTIONS:
            raise unknown("attention", self.attention, ATTENTIONS)
        longest = self.fields.get("max_position_embeddings")
        if isinstance(longest, int) and self.seq > longest:
            raise ValueError(
                f"seq is {self.seq}, but the model has max_position_embeddings {longest}: give a "
                "shorter sequence, or change that field of the configuration"
            )

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the configuration."""
        fields: dict[str, Any] = json.loads(self.config)
        return fields

    def model(self) -> nn.Module:
        """The model in training mode, with the default dtype and on the default device."""
        return configured(self.fields, self.attention, checkpointing=self.checkpointing)

    def inputs(self) -> dict[str, Any]:
        """One micro-batch, as keyword arguments of the model."""
        ids = torch.zeros((self.batch, self.seq), dtype=torch.long)
        if _is_causal(self.fields):
            return {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
        return {"input_ids": ids}


def loss_of(output: Any) -> Tensor:
    """The model's own loss; for an encoder without a task head the mean of what it returns."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    parts = [output.last_hidden_state, getattr(output, "pooler_output", None)]
    total: Tensor = sum(part.float().mean() for part in parts if part is not None)
    return total


def configured(
    config: Mapping[str, Any], attention: str = "sdpa", *, checkpointing: bool = False
) -> nn.Module:
    """The transformers model of a configuration: a causal language model, or the bare encoder.

    Raises:
        UnsupportedCombination: transformers is not installed.
        ConfigError: it has no model for this configuration.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise UnsupportedCombination(
            "activations need the real model, and so the package transformers (pip install "
            "transformers); without batch and seq everything else is predicted"
        ) from None
    if "model_type" not in config:
        raise ConfigError(
            f"activations of {config.get('_class_name', 'this configuration')!r} are not known: "
            "the model is not one of transformers. Build it yourself and use "
            "memopt.accounting.trace."
        )
    kind = transformers.AutoModelForCausalLM if _is_causal(config) else transformers.AutoModel
    try:
        fields = transformers.AutoConfig.for_model(**config)
        model: nn.Module = kind.from_config(fields, attn_implementation=attention)
    except Exception as error:  # a configuration can be wrong in as many ways as it has fields
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"transformers cannot build this configuration: {reason}") from error
    model.train()
    if checkpointing:
        switch: Any = model.activation_checkpointing_enable
        try:
            switch({"use_reentrant": False})
        except ValueError as error:
            raise UnsupportedCombination(str(error)) from None
    return model


def _is_causal(config: Mapping[str, Any]) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    encoders = ("bert", "roberta")
    family = config.get("model_type")
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and family not in encoders
