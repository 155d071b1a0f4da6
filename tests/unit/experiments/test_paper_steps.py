"""Every model and method of suite `paper` makes whole steps, on tensors without memory (slow).

The real model and the real optimizer, two steps of forward, backward and update, up to 7B.
"""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from experiments import suites
from memopt import accounting

pytestmark = pytest.mark.slow


def combinations() -> dict[str, tuple[str, str, dict]]:
    """Model, method and arguments of the suite, each once."""
    found = {}
    for run in suites.expand("paper"):
        if run.task != "pretrain":
            continue
        arguments = json.dumps(run.method.args, sort_keys=True)
        key = f"{run.model.name}-{run.method.name}-{arguments}"
        found[key] = (run.model.name, run.method.name, run.method.args)
    return found


@pytest.mark.parametrize("case", combinations().values(), ids=list(combinations()))
def test_two_steps_keep_the_predicted_states(case: tuple[str, str, dict]) -> None:
    model, method, arguments = case
    shape = suites.model_spec(model).shape

    def build_model() -> torch.nn.Module:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape)).train()

    def build_batch() -> dict:
        ids = torch.zeros((1, 32), dtype=torch.long)
        return {"input_ids": ids, "labels": ids, "use_cache": False}

    traced = accounting.trace(build_model, build_batch, method, "bfloat16", **arguments)
    predicted = accounting.predict(model, method, "bfloat16", **arguments)
    assert traced.peak["states"] == predicted.states + predicted.projections
    assert traced.highest("gradients") == predicted.gradients
