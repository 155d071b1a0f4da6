"""Adam-mini's update against pytorch-optimizer's, whose partition is an older one."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from memopt import AdamMini, block_groups

oracle = pytest.importorskip("pytorch_optimizer")

# its partition: Adam for embeddings and head, one number for each other weight but query and key
THEIRS = {
    "*embed*": "element",
    "lm_head*": "element",
    "*v_proj*": "tensor",
    "*o_proj*": "tensor",
    "*mlp*": "tensor",
}


def test_trajectory_with_grouped_queries() -> None:
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1, "vocab_size": 64}
    torch.manual_seed(0)
    ours = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=6, num_key_value_heads=2))
    theirs = copy.deepcopy(ours)
    heads = {"num_embeds": 48, "num_heads": 6, "num_query_groups": 2}
    first = AdamMini(block_groups(ours, blocks=THEIRS), 0.01, weight_decay=0.1)
    second = oracle.AdamMini(theirs, 0.01, weight_decay=0.1, **heads)
    draw = torch.Generator().manual_seed(1)
    for _ in range(8):
        for param, twin in zip(ours.parameters(), theirs.parameters(), strict=True):
            param.grad = 1e-2 * torch.randn(param.shape, generator=draw)
            twin.grad = param.grad.clone()
        first.step()
        second.step()
    for param, twin in zip(ours.parameters(), theirs.parameters(), strict=True):
        # eight steps of 0.01, each with float32 rounding of the mean of some thousand squares
        torch.testing.assert_close(param, twin, rtol=0, atol=5e-7)
