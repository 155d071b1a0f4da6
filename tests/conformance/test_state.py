"""The laws of state: determinism, seeds by name, exact resumption, dtypes, what a file holds."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

from memopt.states import blockwise
from tests.conformance.subjects import METHODS, Net, same

law = pytest.mark.law
STEPS = 8


def through_a_file(content: dict) -> dict:
    """Saved and read as untrusted files are."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def tensors(state: dict) -> dict[str, Tensor]:
    """The tensors of one parameter's state."""
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


@pytest.fixture
def tiny_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps even the small moments of these tests in 8 bits."""
    monkeypatch.setattr(blockwise, "MINIMUM_ELEMENTS", 1)


@law("determinism")
@pytest.mark.variants
def test_two_runs_have_the_same_bits(subject) -> None:
    runs = []
    for draws in (1, 5):
        torch.rand(draws)  # the global generator plays no part
        runs.append(subject.start().run(range(6)).values())
    assert same(*runs)
    assert all(value.isfinite().all() for value in runs[0].values())


@law("seeds")
@pytest.mark.variants
def test_reordered_and_inserted_parameters_change_nothing(subject) -> None:
    first = subject.start().run(range(5)).values()
    other = subject.start(Net(("unused", *reversed(Net.PARTS)))).run(range(5)).values()
    assert same(first, {name: other[name] for name in first})


STORAGES = ("float32", "bfloat16", "8bit")


def options(subject, dtype: torch.dtype) -> list[dict]:
    """Every storage that the method has, and stochastic rounding for bfloat16 weights."""
    known = subject.method.arguments()
    shared = {"lr": 0.03, "weight_decay": 0.1}
    if dtype is torch.bfloat16 and "rounding" in known:
        shared["rounding"] = "stochastic"
    if "storage" not in known:
        return [shared]
    return [{**shared, "storage": storage} for storage in STORAGES]


@law("resume")
@pytest.mark.variants
@pytest.mark.usefixtures("tiny_codes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stop", [3, 5])  # of intervals 2, 3, 5: on and off a refresh
def test_resumes_to_the_bits_of_an_undisturbed_run(subject, stop, dtype) -> None:
    for arguments in options(subject, dtype):
        undisturbed = subject.start(Net().to(dtype), **arguments).run(range(STEPS))
        first = subject.start(Net().to(dtype), **arguments).run(range(stop))
        saved = through_a_file({"model": first.model.state_dict(), "optimizer": first.saved()})
        second = subject.start(Net().to(dtype), **arguments)
        second.model.load_state_dict(saved["model"])
        second.optimizer.load_state_dict(saved["optimizer"])
        kept, loaded = first.states(), second.states()
        assert kept.keys() == loaded.keys()
        for name, state in kept.items():
            assert state.keys() == loaded[name].keys()
            assert {type(value) for value in state.values()} <= {int, Tensor}
            assert not any(value.requires_grad for value in tensors(state).values())
            for key, value in tensors(state).items():
                assert loaded[name][key].dtype is value.dtype  # torch alone casts to the weight's
                assert torch.equal(loaded[name][key], value)
        second.run(range(stop, STEPS))
        assert same(undisturbed.values(), second.values())
        assert all(value.isfinite().all() for value in second.values().values())


@law("copies")
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_alike(subject, copier) -> None:
    training = subject.start().run(range(3))
    twin = subject.start()
    twin.model, twin.optimizer = copier((training.model, training.optimizer))
    assert same(training.run(range(3, 6)).values(), twin.run(range(3, 6)).values())


@law("own_state")
def test_a_loaded_state_is_its_own(subject) -> None:
    saved = subject.start().run(range(2)).saved()
    kept = copy.deepcopy(saved)
    resumed = subject.start()
    resumed.optimizer.load_state_dict(saved)
    resumed.run(range(2))
    for index, state in saved["state"].items():
        assert same(tensors(state), tensors(kept["state"][index]))


@law("resume")
def test_keys_of_groups_and_schedulers_survive(subject) -> None:
    training, resumed = subject.start(lr=0.1), subject.start(lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(training.optimizer)
    training.run(range(2))
    schedule.step()
    resumed.optimizer.load_state_dict(through_a_file(training.saved()))
    for group, wanted in zip(
        resumed.optimizer.param_groups, training.optimizer.param_groups, strict=True
    ):
        assert {k: v for k, v in group.items() if k != "params"} == {
            k: v for k, v in wanted.items() if k != "params"
        }


@law("state_dtype")
def test_state_is_precise_whatever_the_weights_are(subject) -> None:
    for weights, kept in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        states = subject.start(Net().to(weights)).run(range(2)).states()
        found = {t.dtype for state in states.values() for t in tensors(state).values()}
        assert {dtype for dtype in found if dtype.is_floating_point} <= {kept}


@law("foreign_state")
def test_state_of_another_method_is_refused(subject) -> None:
    saver = METHODS["gwt" if subject.name == "adamw" else "adamw"]
    saved = saver.start().run(range(1)).saved()
    optimizer = subject.start().optimizer
    with pytest.raises(ValueError, match=f"not of {type(optimizer).__name__}: it was saved"):
        optimizer.load_state_dict(saved)
    assert not any(optimizer.state.values())
