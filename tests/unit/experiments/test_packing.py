"""Packed rows: as many as fit, and none sees another."""

import pytest
import torch

from experiments.errors import UserError
from experiments.packing import pack, packed, padded, require_borders
from experiments.prompts import Template, encode

from . import instructed

LENGTH = 256


def encoded() -> tuple[list[dict[str, list[int]]], int]:
    template = Template("alpaca", instructed.tokenizer(), "tiny")
    return encode(instructed.instructions(12), template, LENGTH, "train").rows, template.padding


def test_packs_hold_every_row_in_order_within_the_length() -> None:
    rows, padding = encoded()
    packs = pack(rows, LENGTH)
    assert 1 < len(packs) < len(rows)
    for key in ("input_ids", "labels"):
        assert sum((p[key] for p in packs), []) == sum((r[key] for r in rows), [])
    batch = packed(packs, LENGTH, padding)
    assert {tuple(value.shape) for value in batch.values()} == {(len(packs), LENGTH)}
    starts = (batch["position_ids"] == 0).sum().item()
    filled = sum(len(p["input_ids"]) < LENGTH for p in packs)
    assert starts == len(rows) + filled  # what fills a row is a document of its own
    assert (batch["labels"] != -100).sum() == sum(x != -100 for r in rows for x in r["labels"])


def test_logits_and_gradients_are_those_of_the_single_rows() -> None:
    rows, padding = encoded()
    model = instructed.model()
    packs = pack(rows, LENGTH)
    together = model(**packed(packs, LENGTH, padding))
    where = iter(
        (number, start)
        for number, p in enumerate(packs)
        for start, position in enumerate(p["position_ids"])
        if position == 0
    )
    for row in rows:
        number, start = next(where)
        size = len(row["input_ids"])
        alone = model(torch.tensor([row["input_ids"]])).logits[0]
        # float32: attention sums in another order
        torch.testing.assert_close(
            together.logits[number, start : start + size], alone, rtol=1e-4, atol=1e-4
        )
    together.loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    apart = model(**padded(rows, padding))
    assert together.loss.item() == pytest.approx(apart.loss.item(), rel=1e-5)
    apart.loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_a_model_that_mixes_documents_is_refused() -> None:
    rows, padding = encoded()
    model = instructed.model()
    require_borders(model, rows, LENGTH, padding)  # a LLaMA keeps them apart
    model.config.use_cache = True  # with a cache, transformers 5.24 does not look for borders
    with pytest.raises(UserError, match="lets the documents of a packed row see each other"):
        require_borders(model, rows, LENGTH, padding)
    require_borders(model, rows, 60, padding)  # no two rows fit into one
