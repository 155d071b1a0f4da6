"""A state_dict of another method, or of other parameters, is refused and changes nothing."""

import copy

import pytest
import torch
from torch import nn

import memopt

SHAPES = {"tall": (12, 7), "wide": (6, 14)}


def trained(factory, shapes=SHAPES, **arguments) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    params = {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    optimizer = factory(params.items(), lr=0.1, **arguments)
    sum(param.square().sum() for param in params.values()).backward()
    optimizer.step()
    return optimizer


def test_the_methods_name() -> None:
    """COAP keeps what GaLore keeps, and has all of its hyperparameters: only the name tells."""
    coap, galore = trained(memopt.COAP, rank=3), trained(memopt.GaLore, rank=3)
    before = copy.deepcopy(galore.state_dict()["state"])
    with pytest.raises(ValueError, match=r"not of GaLore: it was saved by memopt\.COAP"):
        galore.load_state_dict(coap.state_dict())
    torch.testing.assert_close(galore.state_dict()["state"], before, rtol=0, atol=0)


def test_states_without_a_name_must_have_the_declared_buffers() -> None:
    saved = trained(memopt.AdaLomo).state_dict()
    del saved["method"]
    with pytest.raises(
        ValueError, match=r"not of this LOMO: for 'tall' it has exp_avg_sq_row.*nothing"
    ):
        trained(memopt.LOMO).load_state_dict(saved)


def test_parameters_of_other_shapes() -> None:
    swapped = {"tall": (6, 14), "wide": (12, 7)}
    saved = trained(memopt.GaLore, swapped, rank=3).state_dict()
    with pytest.raises(ValueError, match=r"for 'tall' it has .*\(6, 3\).*\(12, 3\)"):
        trained(memopt.GaLore, rank=3).load_state_dict(saved)


def test_a_state_without_a_name_loads() -> None:
    """Checkpoints of memopt before the name was written."""
    saved = trained(memopt.GaLore, rank=3).state_dict()
    del saved["method"]
    other = trained(memopt.GaLore, rank=2)
    other.load_state_dict(saved)
    torch.testing.assert_close(other.state_dict()["state"], saved["state"], rtol=0, atol=0)


def test_a_subclass_takes_its_base_classes_states() -> None:
    class Mine(memopt.GaLore):
        pass

    trained(Mine, rank=3).load_state_dict(trained(memopt.GaLore, rank=3).state_dict())
