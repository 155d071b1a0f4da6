"""Runs each law on each method, holds declared limits to be limits, and records what came out."""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

import memopt
from memopt.capabilities import CAPABILITIES
from memopt.subspaces import tucker
from tests.conformance.subjects import METHODS, VARIANTS

RECORD = "MEMOPT_CONFORMANCE"  # where tools/conformance.py wants the outcomes
MEMOPT = Path(memopt.__file__).parent
REFUSALS = (ValueError, memopt.errors.MiniBatchError)
OUTCOMES: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "law(capability): what the test holds each `subject` to")
    config.addinivalue_line("markers", "variants: also with options beyond the defaults")
    config.addinivalue_line("markers", "selective: methods that leave some weights to plain Adam")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a ``subject`` runs on every method of the catalog."""
    if "subject" in metafunc.fixturenames:
        chosen = METHODS
        if metafunc.definition.get_closest_marker("variants"):
            chosen = {**VARIANTS, **METHODS}
        if metafunc.definition.get_closest_marker("selective"):
            chosen = {name: each for name, each in METHODS.items() if each.method.chooses()}
        metafunc.parametrize("subject", chosen.values(), ids=chosen)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Runs a law; where a limit is declared the law must fail, in the way that it names."""
    mark = pyfuncitem.get_closest_marker("law")
    if mark is None:
        return (yield)
    (capability,) = mark.args
    method = pyfuncitem.callspec.params["subject"].method
    if capability not in method.limits:
        answer = yield
        OUTCOMES[method.name][capability].append("yes")
        return answer
    failures = () if CAPABILITIES[capability].refused else (AssertionError, pytest.fail.Exception)
    try:
        yield
    except REFUSALS as error:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        assert raised_in.is_relative_to(MEMOPT), "the limit is not refused by name"
    except failures:
        pass
    else:
        pytest.fail(
            f"{method.name} does what memopt/catalog.py says it does not: take {capability!r} out "
            "of its limits"
        )
    OUTCOMES[method.name][capability].append("no")
    return True


def pytest_sessionfinish() -> None:
    if RECORD in os.environ:
        Path(os.environ[RECORD]).write_text(json.dumps(OUTCOMES))


@pytest.fixture(scope="module", autouse=True)
def small_kernels() -> Iterator[None]:
    """COAP projects even the small convolution kernels of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tucker, "PLAIN_ELEMENTS", 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    """Spares hundreds of searches through all that torch and transformers have imported.

    Trainer collects garbage once a run, and `memopt.backward` looks for wrappers of the model.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def process_group(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process group of one for methods that want several processes (`tests/distributed`)."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "subject" not in parameters or parameters["subject"].method.kind != "distributed":
        yield
        return
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
