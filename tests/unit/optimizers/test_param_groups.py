"""Which parameters are treated: transformers' LLaMA and BERT, convolutions, ties, targets."""

import pytest
import torch
from torch import nn

import memopt
from memopt import param_groups

transformers = pytest.importorskip("transformers")


def split(groups) -> tuple[set[str], set[str]]:
    """Names of treated and of plain parameters."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for group in groups:
        names[group["treated"]] |= {name for name, _ in group["params"]}
    return names[True], names[False]


def llama(tied: bool = False) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def bert(cls=None, **arguments) -> nn.Module:
    cls = cls or transformers.BertForSequenceClassification
    config = cls.config_class(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, **arguments,
    )  # fmt: skip
    return cls(config)


LLAMA_TREATED = {
    f"model.layers.{layer}.{part}.weight"
    for layer in range(2)
    for part in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )
}  # fmt: skip
LLAMA_NORMS = {
    *(f"model.layers.{layer}.{part}_layernorm.weight" for layer in range(2)
      for part in ("input", "post_attention")),
    "model.norm.weight",
}  # fmt: skip
BERT_TREATED = {
    f"bert.encoder.layer.{layer}.{part}.weight"
    for layer in range(2)
    for part in (
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "intermediate.dense", "output.dense",
    )
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
def test_llama(tied) -> None:
    model = llama(tied)
    treated, plain = split(param_groups(model))
    assert treated == LLAMA_TREATED
    head = set() if tied else {"lm_head.weight"}
    assert plain == LLAMA_NORMS | head | {"model.embed_tokens.weight"}


def test_official_names_choose_the_same_layers_of_llama() -> None:
    # GaLore's, GWT's and COAP's scripts: names with attn or mlp
    assert split(param_groups(llama(), ["attn", "mlp"]))[0] == LLAMA_TREATED


def test_bert_for_classification() -> None:
    model = bert()
    treated, plain = split(param_groups(model))
    assert treated == BERT_TREATED
    assert {"classifier.weight", "bert.pooler.dense.weight"} <= plain
    assert treated | plain == {name for name, _ in model.named_parameters()}
    everywhere, _ = split(param_groups(model, "all-linear"))
    assert everywhere == BERT_TREATED | {"classifier.weight", "bert.pooler.dense.weight"}


def test_official_names_choose_the_same_layers_of_roberta() -> None:
    # GWT's GLUE script
    names = ["query", "key", "value", "intermediate.dense", "output.dense"]
    model = bert(transformers.RobertaForSequenceClassification)
    treated, _ = split(param_groups(model))
    assert treated == split(param_groups(model, names))[0]
    assert len(treated) == 2 * 6


def test_bert_with_a_tied_head() -> None:
    model = bert(transformers.BertForMaskedLM)
    groups = param_groups(model, "all-linear")
    treated, plain = split(groups)
    assert treated == BERT_TREATED | {"cls.predictions.transform.dense.weight"}
    assert "bert.embeddings.word_embeddings.weight" in plain
    reason = groups.reasons["bert.embeddings.word_embeddings.weight"]
    assert "embedding" in reason


def test_every_parameter_once_and_the_models_own() -> None:
    for model in (llama(True), llama(), bert(), bert(transformers.BertForMaskedLM)):
        held = [param for group in param_groups(model) for _, param in group["params"]]
        assert sorted(map(id, held)) == sorted(map(id, model.parameters()))


def test_frozen_parameters_are_included() -> None:
    model = llama()
    model.requires_grad_(False)
    assert split(param_groups(model))[0] == LLAMA_TREATED


def test_targets_by_part_of_a_name_and_by_function() -> None:
    treated, _ = split(param_groups(llama(), ["q_proj", "layers.1.mlp"]))
    assert treated == {n for n in LLAMA_TREATED if "q_proj" in n or "layers.1.mlp" in n}
    treated, plain = split(param_groups(llama(), lambda name, param: "embed" in name))
    assert treated == {"model.embed_tokens.weight"} and plain > LLAMA_TREATED


def test_a_named_head_is_treated() -> None:
    assert split(param_groups(llama(), ["lm_head"]))[0] == {"lm_head.weight"}


def test_targets_reach_matrices_outside_linear_modules() -> None:
    # GPT-2 keeps its matrices in a class of transformers' own, experts come as bare parameters
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=40,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=8,
            bos_token_id=1,
            eos_token_id=1,
        )
    )
    treated, plain = split(param_groups(model, ["attn", "mlp"]))
    assert treated == {
        f"transformer.h.{layer}.{part}.weight"
        for layer in range(2)
        for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    assert "transformer.wte.weight" in plain


def test_targets_that_match_nothing_are_an_error() -> None:
    # also beside others that do match: nobody would see that the MLP stays plain
    with pytest.raises(ValueError, match="unknown target 'self_atn'. Did you mean 'self_attn'"):
        param_groups(llama(), ["mlp", "self_atn"])
    with pytest.raises(ValueError, match=r"targets=\['norm'\] match no parameter of Llama"):
        param_groups(llama(), ["norm"])


def test_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv1d(8, 4, 3), nn.Linear(4, 2)
    )
    treated, plain = split(param_groups(model))
    assert treated == {"0.weight", "2.weight", "3.weight"}
    assert plain == {"0.bias", "1.weight", "1.bias", "2.bias", "3.bias"}


def test_every_choice_has_a_reason() -> None:
    groups = param_groups(llama())
    text = groups.describe()
    assert len(text.splitlines()) == len(groups.reasons) == len(list(llama().parameters()))
    assert "lm_head.weight: output head" in text
    assert "model.norm.weight: 1-D" in text


@pytest.mark.parametrize("method", ["gwt", "coap", "galore"])
def test_create_trains_a_llama(method) -> None:
    torch.manual_seed(0)
    model = llama(tied=True)
    arguments = {"rank": 4} if method != "gwt" else {"details": "safe"}
    optimizer = memopt.create(method, model, lr=1e-2, **arguments)
    tokens = torch.randint(0, 40, (4, 12))
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert {name for name, _ in optimizer.treated_parameters()} == LLAMA_TREATED
    assert losses[-1] < losses[0] - 0.3
