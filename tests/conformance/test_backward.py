"""Gradients used in backward: by every method that can, with the bits of step()."""

import pytest
import torch

import memopt
from tests.conformance.subjects import same
from tests.properties.variants import ordinary

law = pytest.mark.law


def assert_grads_are_gone(training) -> None:
    assert all(p.grad is None for p in training.model.parameters())


@law("in_backward")
def test_update_in_backward_has_the_bits_of_step(subject) -> None:
    plain, timed = subject.start(), subject.start()
    for training in (plain, timed):
        ordinary(training.optimizer)
    memopt.update_in_backward(timed.optimizer)
    for step in range(5):
        plain.run(range(step, step + 1))
        timed.loss(step).backward()
        assert_grads_are_gone(timed)
        timed.optimizer.step()
        timed.optimizer.zero_grad()
    assert same(plain.values(), timed.values())


@law("accumulation")
def test_accumulate_in_backward_of_one_micro_batch_is_step(subject) -> None:
    plain, timed = subject.start(), subject.start()
    for training in (plain, timed):
        ordinary(training.optimizer)
    memopt.accumulate_in_backward(timed.optimizer)
    for step in range(5):
        plain.run(range(step, step + 1))
        timed.loss(step).backward()
        timed.optimizer.step()
        timed.optimizer.zero_grad()
    for name, value in plain.values().items():  # sums in another order
        torch.testing.assert_close(timed.values()[name], value, rtol=1e-4, atol=1e-6)


@law("accumulation")
def test_accumulate_in_backward_frees_each_micro_gradient(subject) -> None:
    timed = subject.start()
    ordinary(timed.optimizer)
    memopt.accumulate_in_backward(timed.optimizer)
    before = timed.values()
    for micro in range(3):
        (timed.loss(micro) / 3).backward()
        assert_grads_are_gone(timed)
        assert same(before, timed.values())
    timed.optimizer.step()
    assert not same(before, timed.values())
    assert all(state.get("step", 1) == 1 for state in timed.states().values())
