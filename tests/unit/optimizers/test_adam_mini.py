"""Adam-mini: its equations with blocks written out, the partition of models, and its sizes."""

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

import memopt
from memopt import AdamMini, UnsupportedCombination, block_groups
from memopt.accounting import shapes

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 64}


def llama(**changes) -> nn.Module:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**SIZES | heads | changes))


def blocks(model: nn.Module, **arguments) -> dict[str, tuple[int, ...]]:
    """Shape of the second moment of every parameter, as it is allocated."""
    optimizer = AdamMini(block_groups(model, **arguments))
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    return {n: tuple(optimizer.state[p]["exp_avg_sq"].shape) for n, p in model.named_parameters()}


# ---- the update ----------------------------------------------------------------------------


def train(optimizer: torch.optim.Optimizer, param: nn.Parameter, steps: int = 6) -> torch.Tensor:
    draw = torch.Generator().manual_seed(4)
    for _ in range(steps):
        param.grad = torch.randn(param.shape, generator=draw, dtype=param.dtype)
        optimizer.step()
    return param.detach()


@pytest.mark.parametrize(
    "block, sizes", [("rows", [1] * 12), (1, [1] * 12), (3, [3] * 4), (12, [12]), ("tensor", [12])]
)
def test_equations(block, sizes) -> None:
    """One learning rate a block: mean of squares over its rows, torch's place for eps."""
    start = torch.ones(12, 5, dtype=torch.float64)
    param, expected = nn.Parameter(start.clone()), start.clone()
    got = train(AdamMini([param], 0.01, eps=1e-3, block=block, weight_decay=0.1), param)
    draw = torch.Generator().manual_seed(4)
    m, v = torch.zeros(12, 5, dtype=torch.float64), torch.zeros(len(sizes), dtype=torch.float64)
    for t in range(1, 7):
        grad = torch.randn(12, 5, generator=draw, dtype=torch.float64)
        m = 0.9 * m + 0.1 * grad
        mean = torch.stack([rows.square().mean() for rows in grad.split(sizes)])
        v = 0.999 * v + 0.001 * mean
        root = (v / (1 - 0.999**t)).sqrt().repeat_interleave(torch.tensor(sizes))
        step = 0.01 * (m / (1 - 0.9**t)) / (root[:, None] + 1e-3)
        expected = expected * (1 - 0.01 * 0.1) - step
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(12, 5), (7,), (), (4, 3, 2, 2)])
def test_blocks_of_one_number_are_adamw(shape) -> None:
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    got = train(AdamMini([ours], 0.01, block="element", weight_decay=0.1), ours)
    expected = train(torch.optim.AdamW([theirs], 0.01, weight_decay=0.1, foreach=False), theirs)
    # float32: the square is rounded before it is weighted, and eps before the root is divided
    torch.testing.assert_close(got, expected, rtol=3e-7, atol=0)


# ---- the partition -------------------------------------------------------------------------


def test_llama_with_grouped_queries() -> None:
    got = blocks(llama())
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    assert got[attention + "q_proj.weight"] == (6,)  # heads
    assert got[attention + "k_proj.weight"] == (2,)  # heads of keys
    assert got[attention + "v_proj.weight"] == (16,)  # neurons, as all below
    assert got[attention + "o_proj.weight"] == (48,)
    assert got[mlp + "gate_proj.weight"] == got[mlp + "up_proj.weight"] == (80,)
    assert got[mlp + "down_proj.weight"] == (48,)
    assert got["model.embed_tokens.weight"] == got["lm_head.weight"] == (64,)  # tokens
    assert got["model.norm.weight"] == ()


def test_heads_whose_sizes_do_not_multiply_to_the_width() -> None:
    # fourteen heads of 10 rows at width 56, two of keys: the width says nothing of the heads
    got = blocks(llama(hidden_size=56, num_attention_heads=14, num_key_value_heads=2, head_dim=10))
    assert got["model.layers.0.self_attn.q_proj.weight"] == (14,)
    assert got["model.layers.0.self_attn.k_proj.weight"] == (2,)


@pytest.mark.parametrize(
    "model",
    [
        lambda: BertModel(BertConfig(**SIZES, num_attention_heads=4)),
        lambda: RobertaForMaskedLM(RobertaConfig(**SIZES, num_attention_heads=4)).roberta,
    ],
)
def test_bert_and_roberta(model) -> None:
    got = blocks(model())
    layer = "encoder.layer.0."
    assert got[layer + "attention.self.query.weight"] == (4,)
    assert got[layer + "attention.self.key.weight"] == (4,)
    assert got[layer + "attention.self.value.weight"] == (48,)
    assert got[layer + "attention.output.dense.weight"] == (48,)
    assert got[layer + "intermediate.dense.weight"] == (80,)
    assert got["embeddings.word_embeddings.weight"] == (64,)
    # "output" in a norm's name, "key" in a bias's: neither an output layer nor a key
    assert got[layer + "attention.output.LayerNorm.weight"] == ()
    assert got[layer + "attention.self.key.bias"] == (48,)


def test_tied_weights_are_one() -> None:
    model = llama(tie_word_embeddings=True)
    groups = block_groups(model)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert groups.reasons["model.embed_tokens.weight"] == "embedding: one block a token"


def test_norms_and_biases_do_not_decay() -> None:
    model = BertModel(BertConfig(**SIZES, num_attention_heads=4))
    optimizer = AdamMini(block_groups(model), weight_decay=0.1)
    still = {
        optimizer.name_of(param)
        for group in optimizer.param_groups
        if group["weight_decay"] == 0
        for param in group["params"]
    }
    assert still == {name for name, p in model.named_parameters() if p.ndim == 1}


def test_torchs_attention_and_unknown_kinds() -> None:
    model = nn.ModuleDict(
        {
            "one": nn.MultiheadAttention(8, 2),
            "three": nn.MultiheadAttention(8, 4, kdim=6, vdim=5),
            "conv": nn.Conv2d(3, 7, 2),
            "back": nn.ConvTranspose2d(3, 7, 2),
        }
    )
    model.register_parameter("position", nn.Parameter(torch.zeros(1, 5, 8)))
    got = blocks(model)
    assert got["one.in_proj_weight"] == (6,)  # two heads each of query, key and value
    assert (got["three.q_proj_weight"], got["three.v_proj_weight"]) == ((4,), (8,))
    assert got["one.out_proj.weight"] == (8,)
    assert got["conv.weight"] == (7,)
    assert got["back.weight"] == (3, 7, 2, 2)  # its outputs are no rows: Adam
    assert got["position"] == (1, 5, 8)
    assert "does not know: plain Adam" in block_groups(model).reasons["position"]


class HandMade(nn.Module):
    """Attention that tells nobody its heads, and a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(12, 12, bias=False) for _ in range(3))
        self.mixing = nn.Parameter(torch.zeros(6, 4))


def test_a_hand_made_module() -> None:
    with pytest.raises(ValueError, match="'wq' is a query or key.*pass head_dim="):
        block_groups(HandMade())
    got = blocks(HandMade(), head_dim=4, blocks={"mix*": 2})
    assert got == {"wq.weight": (3,), "wk.weight": (3,), "wv.weight": (12,), "mixing": (3,)}
    counted = HandMade()
    counted.n_heads = 2
    assert blocks(counted)["wk.weight"] == (2,)


def test_the_description_has_every_parameter_in_order_and_why() -> None:
    model = llama()
    lines = block_groups(model).describe().splitlines()
    assert [line.split(": ")[0].split()[-1] for line in lines] == [
        name for name, _ in model.named_parameters()
    ]
    key = "model.layers.0.self_attn.k_proj.weight: key of attention: one block a head of 8 rows"
    assert " ".join(lines[2].split()) == f"2 for (16, 48) {key}"


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: block_groups(llama(), head_dim=7), "7 rows does not divide the 48 rows of '.*q_"),
        (lambda: block_groups(llama(), blocks={"lm_hed.weight": 1}), "Did you mean 'lm_head.w"),
        (lambda: block_groups(llama(), blocks={"lm_head.weight": "row"}), "Did you mean 'rows'"),
        (lambda: AdamMini([nn.Parameter(torch.ones(6, 2))], block=4), "4 rows .* 6 rows .*head_"),
        (lambda: AdamMini([nn.Parameter(torch.ones(6, 2))], block=0), "0 rows does not divide"),
        (lambda: AdamMini([nn.Parameter(torch.ones(6, 2))], block=1.0), "block"),
    ],
)
def test_bad_input(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_weights_whose_outputs_are_columns_are_refused_by_name() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32))
    with pytest.raises(UnsupportedCombination, match="attn.c_attn.weight.*blocks="):
        block_groups(model)
    got = blocks(model, blocks={"*.c_*.weight": "element"})
    assert got["transformer.h.0.attn.c_attn.weight"] == (16, 48)


# ---- sizes ---------------------------------------------------------------------------------


def test_state_is_half_of_adams_and_a_number_a_block() -> None:
    model = llama()
    report = memopt.accounting.predict(model, "adam_mini")
    head, layer = 64 * 2, 6 + 2 + 16 + 48 + 80 + 80 + 48 + 2  # tokens; the last two are norms
    numbers = sum(p.numel() for p in model.parameters()) + head + 2 * layer + 1
    assert report.states == 4 * numbers


def test_skeletons_know_their_heads() -> None:
    attention = {"num_attention_heads": 8, "num_key_value_heads": 2}
    skeleton = shapes.module_of({"model_type": "llama", **SIZES, **attention})
    named = {
        name: group["block"] for group in block_groups(skeleton) for name, _ in group["params"]
    }
    assert named["model.layers.0.self_attn.k_proj.weight"] == 6
    for shape in shapes.names():
        assert block_groups(shapes.module_of(shape))
