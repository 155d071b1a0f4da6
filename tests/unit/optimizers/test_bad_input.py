"""Every wrong argument is named, with what to do; nothing surfaces from the depths."""

import pytest
import torch
from torch import nn

import memopt
from memopt import COAP, GWT, GaLore, UnsupportedCombination

CORE = ("gwt", "coap", "galore")
NEEDED = {"gwt": {}, "coap": {"rank": 2}, "galore": {"rank": 2}}


def matrix(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(6, 4, dtype=dtype))


def build(method: str, params=None, **arguments):
    factory = memopt.catalog.get(method).load()
    return factory([matrix()] if params is None else params, **{**NEEDED[method], **arguments})


@pytest.mark.parametrize("method", CORE)
@pytest.mark.parametrize(
    "argument, value",
    [
        ("lr", -1e-3),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("lr", "0.01"),
        ("lr", True),
        ("weight_decay", -0.1),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.99)),
        ("betas", (0.9,)),
        ("betas", 0.9),
        ("eps", -1e-8),
        ("scale", 0.0),
        ("scale", "a quarter"),
        ("storage", "float23"),
        ("nonfinite", "rise"),
        ("rounding", "stochastically"),
    ],
)
def test_common_arguments(method, argument, value) -> None:
    with pytest.raises(ValueError, match=argument):
        build(method, **{argument: value})
    with pytest.raises(ValueError, match=argument):  # the same key in a group
        build(method, [{"params": [matrix()], "rank": 2, argument: value}] if method != "gwt" else
              [{"params": [matrix()], argument: value}])  # fmt: skip


@pytest.mark.parametrize(
    "factory, arguments, words",
    [
        (GWT, {"level": -1}, "level must be an integer of 0 to 16, got -1"),
        (GWT, {"level": 40}, "level must be an integer of 0 to 16, got 40"),
        (GWT, {"share": 1.5}, "share must be at most 1, got 1.5"),
        (GWT, {"details": "save"}, "Did you mean 'safe'"),
        (GWT, {"level": 1.5}, "level"),
        (GWT, {"level": True}, "level"),
        (GWT, {"wavelet": "har"}, "Did you mean 'haar'"),
        (GWT, {"norm_growth_limit": 0.0}, "norm_growth_limit"),
        (GWT, {"rule": "adm"}, "Did you mean 'adam'"),
        (GWT, {"axis": "lst"}, "Did you mean 'last'"),
        (GaLore, {"rank": 0}, "rank must be an integer of 1 or more, got 0"),
        (GaLore, {"rank": None}, "rank"),
        (GaLore, {"rank": 2.0}, "rank"),
        (GaLore, {"rank": 2, "update_interval": 0}, "update_interval"),
        (GaLore, {"rank": 2, "side": "lft"}, "Did you mean 'left'"),
        (COAP, {"rank": 0}, "rank must be an integer of 1 or more, got 0"),
        (COAP, {"rank": 2, "rank_ratio": 2.0}, "exactly one of rank and rank_ratio"),
        (COAP, {}, "exactly one of rank and rank_ratio"),
        (COAP, {"rank_ratio": -1.0}, "rank_ratio"),
        (COAP, {"rank": 2, "update_interval": 2.5}, "update_interval"),
        (COAP, {"rank": 2, "recalibrate_every": 0}, "recalibrate_every"),
        (COAP, {"rank": 2, "correlation_update": "normalized"}, "Did you mean 'normalised'"),
    ],
)
def test_own_arguments(factory, arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        factory([matrix()], **arguments)


@pytest.mark.parametrize("method", CORE)
def test_misspelt_names(method) -> None:
    with pytest.raises(ValueError, match="group key 'weight_deacy'.*Did you mean 'weight_decay'"):
        build(method, [{"params": [matrix()], "weight_deacy": 0.1}])
    model = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(ValueError, match=f"argument of {method} 'weight_deacy'.*'weight_decay'"):
        memopt.create(method, model, weight_deacy=0.1, **NEEDED[method])
    with pytest.raises(ValueError, match="method 'galor'. Did you mean 'galore'"):
        memopt.create("galor", model)


def test_contradictory_group_keys() -> None:
    group = {"params": [matrix()], "rank": 2, "update_interval": 5, "update_proj_gap": 7}
    with pytest.raises(ValueError, match="'update_proj_gap' and 'update_interval' are the same"):
        GaLore([group])


@pytest.mark.parametrize("method", CORE)
def test_vector_in_a_treated_group(method) -> None:
    named = [("norm.weight", nn.Parameter(torch.ones(5)))]
    with pytest.raises(ValueError, match=r"'norm.weight' has shape \(5,\).*treated=False"):
        build(method, [{"params": named, "treated": True}])


@pytest.mark.parametrize("method", CORE)
def test_nothing_to_treat(method) -> None:
    with pytest.raises(ValueError, match="nothing to treat.*treated=True"):
        build(method, [nn.Parameter(torch.ones(5))])
    with pytest.raises(ValueError, match="nothing to treat"):
        build(method, [{"params": [matrix()], "treated": False}])
    with pytest.raises(ValueError, match="match no parameter of LayerNorm"):
        memopt.create(method, nn.LayerNorm(4), **NEEDED[method])


def test_coap_says_that_the_rank_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to treat.*shorter side above rank"):
        COAP([matrix()], rank=4)


@pytest.mark.parametrize("treated", ["False", 2])
def test_treated_is_a_truth_value(treated) -> None:
    with pytest.raises(ValueError, match="treated must be True, False or None"):
        GWT([{"params": [matrix()], "treated": treated}])


@pytest.mark.parametrize("method", CORE)
def test_sparse_gradient_is_refused_before_any_change(method) -> None:
    dense, embedding = matrix(), nn.Embedding(10, 4, sparse=True)
    groups = [
        {"params": [("dense", dense)], "treated": True},
        {"params": [("wte.weight", embedding.weight)], "treated": False},
    ]
    optimizer = build(method, groups)
    dense.grad = torch.ones_like(dense)
    embedding(torch.tensor([1, 2])).sum().backward()
    before = dense.detach().clone()
    with pytest.raises(UnsupportedCombination, match="'wte.weight' has a sparse gradient"):
        optimizer.step()
    assert torch.equal(dense.detach(), before)


@pytest.mark.parametrize("storage", ["bfloat16", "8bit"])
def test_narrow_storage_of_float64_weights_is_refused(storage) -> None:
    with pytest.raises(UnsupportedCombination, match="'w' is float64.*storage"):
        GWT([("w", matrix(torch.float64))], storage=storage)


def test_stochastic_rounding_of_float16_is_refused_at_construction() -> None:
    with pytest.raises(UnsupportedCombination, match="'w' is float16.*bfloat16"):
        GWT([("w", matrix(torch.float16))], rounding="stochastic")


@pytest.mark.parametrize("method", CORE)
def test_a_refused_group_leaves_the_optimizer_as_it_was(method) -> None:
    optimizer = build(method)
    for bad in ({"lr": -1.0}, {"treated": True}, {"lrr": 1.0}):
        with pytest.raises(ValueError):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], **bad})
    assert len(optimizer.param_groups) == 1


def test_unknown_targets() -> None:
    with pytest.raises(ValueError, match="targets='atuo': expected 'auto'"):
        memopt.param_groups(nn.Linear(3, 3), "atuo")


@pytest.mark.parametrize("saver, loader", [("gwt", "coap"), ("gwt", "galore"), ("coap", "gwt")])
def test_a_state_dict_of_another_method_is_refused(saver, loader) -> None:
    saved, optimizer = build(saver).state_dict(), build(loader)
    del saved["method"]  # by memopt before the name was written: the hyperparameters tell
    with pytest.raises(ValueError, match=f"not of {type(optimizer).__name__}: its groups have no"):
        optimizer.load_state_dict(saved)
    assert optimizer.state_dict() == build(loader).state_dict()


def test_parameters_in_place_of_the_model() -> None:
    for name, kind in (("gwt", "GWT"), ("lomo", "LOMO")):
        with pytest.raises(TypeError, match=f"wants the model, got a list.*memopt.{kind}"):
            memopt.create(name, [matrix()], lr=1e-2)


def test_a_method_in_capitals_is_near() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'GWT'\. Did you mean 'gwt'\?"):
        memopt.create("GWT", nn.Linear(3, 3))


def test_an_argument_without_default() -> None:
    with pytest.raises(ValueError, match=r"lomo has no default for lr: pass lr="):
        memopt.create("lomo", nn.Linear(3, 3))


def test_param_groups_of_something_else() -> None:
    with pytest.raises(TypeError, match="wants the model, got a int"):
        memopt.param_groups(3)
    with pytest.raises(TypeError, match="targets must be 'auto'.* got 3"):
        memopt.param_groups(nn.Linear(3, 3), 3)
