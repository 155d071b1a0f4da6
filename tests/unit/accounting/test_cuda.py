"""CUDA's own number beside the peak of a step; without a GPU, all but the allocator's counter."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import memopt
from memopt.accounting import cuda, step, trace
from memopt.accounting.__main__ import main
from memopt.accounting.cuda import cuda_peak
from tests.unit.accounting.allocator import peak_of
from tests.unit.accounting.settings import ARGUMENTS
from tests.unit.accounting.test_tracing import build_batch, build_model

WORDS = ["llama_micro", "--method", "gwt", "--batch", "4", "--seq", "48", "--cuda"]
none_here = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without one")


@none_here
def test_no_device_is_named(capsys) -> None:
    for call in (lambda: cuda_peak(lambda: None), lambda: trace(None, None, "gwt", cuda=True)):
        with pytest.raises(memopt.UnsupportedCombination, match="no CUDA device"):
            call()
    assert main(WORDS) == 2
    assert capsys.readouterr().err.startswith("error: there is no CUDA device")


@pytest.fixture
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same path on the CPU; in place of CUDA's counter, the CPU allocator's record.

    The record starts empty: what a step finds (weights, states, batch) is not in it.
    """

    def recorded(one_step: Callable[[], None]) -> int:
        return peak_of(one_step, tmp_path)

    monkeypatch.setattr(cuda, "DEVICE", "cpu")
    monkeypatch.setattr(cuda, "cuda_peak", recorded)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("cpu_as_gpu")
@pytest.mark.parametrize(("method", "micro_batches"), [("gwt", 1), ("lomo", 2), ("adama", 2)])
def test_trace_has_both(method: str, micro_batches: int) -> None:
    given = {"micro_batches": micro_batches, "cuda": True} | ARGUMENTS[method]
    traced = trace(build_model, build_batch, method, **given)
    kept = sum(traced.peak[kind] for kind in ("weights", "states", "other"))
    assert traced.cuda == pytest.approx(traced.total - kept, rel=0.02)
    assert traced.to_dict()["cuda"] == traced.cuda
    assert trace(build_model, build_batch, method, **ARGUMENTS[method]).cuda is None


@pytest.mark.usefixtures("cpu_as_gpu")
def test_command_shows_both(capsys) -> None:
    assert main([*WORDS, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    held = row["weights"] + row["states"] + row["projections"]
    # a peak by formula may be 3 % above a trace's (tests of `step`), and a trace's 2 % off
    assert row["cuda"] == pytest.approx(row["peak"] - held, rel=0.05)
    assert main(WORDS) == 0
    assert "CUDA" in capsys.readouterr().out


@pytest.mark.usefixtures("cpu_as_gpu")
def test_what_does_not_fit_is_left_out(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Callable[[], None]) -> int:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cuda, "cuda_peak", full)
    assert main([*WORDS, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["cuda"] is None
    assert "not measured: a step of gwt does not fit" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama_micro", "--method", "gwt", "--cuda"], "--batch and --seq"),
        ([*WORDS, "--dtype", "mixed"], "mixed precision is predicted only"),
    ],
)
def test_what_cannot_be_run(capsys, words: list[str], message: str) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["gwt", "lomo"])
def test_peak_is_that_of_cuda(method: str) -> None:
    work = step("llama_60m", method, batch=8, seq=256, attention="eager").workload
    traced = trace(work.model, work.inputs, method, cuda=True)
    # kernels are chosen as on the CPU in a trace, and blocks of 512 bytes are not counted
    assert traced.total == pytest.approx(traced.cuda, rel=0.03)
