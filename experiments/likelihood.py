"""What a language model says of given texts: likelihoods of continuations, greedy answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from experiments.evaluate import evaluating

Ids = list[int]


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Ids:
    """Ids of a text that goes on: begun as the tokenizer begins texts, never ended.

    T5's tokenizer closes every text with ``</s>``; a continuation after that would be another.
    """
    alone = tokenizer("").input_ids
    begin = alone[:1] if tokenizer.bos_token_id in alone[:1] else []
    return begin + tokenizer(text, add_special_tokens=False).input_ids


def encode_pair(
    tokenizer: PreTrainedTokenizerBase, context: str, continuation: str
) -> tuple[Ids, Ids]:
    """Ids of a context and of what follows it, as the two together are tokenized.

    As lm-evaluation-harness does: what is beyond the length of the context's own ids.
    """
    begin = encode(tokenizer, context)
    return begin, encode(tokenizer, context + continuation)[len(begin) :]


def log_likelihoods(
    model: PreTrainedModel, requests: Sequence[tuple[Ids, Ids]], batch_size: int
) -> list[float]:
    """Log-likelihood of each continuation after its context, summed over its tokens, in nats.

    Continuations of one token after one context share a forward pass.

    Args:
        model: causal.
        requests: context and continuation, neither empty.
        batch_size: inputs a forward pass; padding is on the left.
    """
    by_input: dict[tuple[int, ...], list[int]] = {}
    for number, (context, continuation) in enumerate(requests):
        by_input.setdefault(tuple([*context, *continuation][:-1]), []).append(number)
    found = [0.0] * len(requests)
    with evaluating(model):
        for batch in _batches(list(by_input), batch_size):
            longest = max(len(requests[n][1]) for ids in batch for n in by_input[ids])
            logits = model(**_padded(model, batch), use_cache=False, logits_to_keep=longest).logits
            logs = logits.float().log_softmax(-1).cpu()
            for ids, log in zip(batch, logs, strict=True):
                for number in by_input[ids]:
                    target = torch.tensor(requests[number][1])
                    picked = log[-len(target) :].gather(1, target[:, None])
                    found[number] = float(picked.sum())
    return found


def greedy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[Ids],
    max_new_tokens: int,
    stops: Sequence[str],
    batch_size: int,
) -> list[str]:
    """The likeliest next tokens, one by one, up to the end token or the first of ``stops``."""
    own, end = model.generation_config, tokenizer.eos_token_id
    # In place of the model's own, which may sample or punish repetition.
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        use_cache=True,
        eos_token_id=end,
        pad_token_id=end or 0,
    )
    said: dict[tuple[int, ...], str] = {}
    try:
        with evaluating(model):
            for batch in _batches(list(dict.fromkeys(map(tuple, contexts))), batch_size):
                inputs = _padded(model, batch)
                del inputs["position_ids"]  # `generate` makes its own
                seen = inputs["input_ids"].shape[1]
                over = StoppingCriteriaList([_Over(tokenizer, seen, stops)])
                made = model.generate(**inputs, stopping_criteria=over)[:, seen:]
                texts = tokenizer.batch_decode(made, skip_special_tokens=True)
                said |= {ids: _cut(text, stops) for ids, text in zip(batch, texts, strict=True)}
    finally:
        model.generation_config = own
    return [said[tuple(ids)] for ids in contexts]


class _Over(StoppingCriteria):
    """Which answers hold a stop; transformers' own criterion fails where no tokens make it up."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seen: int, stops: Sequence[str]) -> None:
        self.tokenizer, self.seen, self.stops = tokenizer, seen, stops

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        texts = self.tokenizer.batch_decode(input_ids[:, self.seen :])
        over = [any(stop in text for stop in self.stops) for text in texts]
        return torch.tensor(over, device=input_ids.device)


def _cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)]


def _batches(inputs: list[tuple[int, ...]], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Inputs of like length together, the longest first, in an order that only they decide."""
    ordered = sorted(inputs, key=lambda ids: (-len(ids), ids))
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def _padded(model: PreTrainedModel, batch: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """``input_ids``, ``attention_mask`` and ``position_ids``, padded on the left."""
    longest = max(map(len, batch))
    lengths = torch.tensor([len(ids) for ids in batch])
    ids = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in batch])
    mask = (torch.arange(longest) >= longest - lengths[:, None]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    tensors: dict[str, Tensor] = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": positions,
    }
    return {key: value.to(model.device) for key, value in tensors.items()}
