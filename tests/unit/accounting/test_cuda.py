"""CUDA's own number beside the peak of a step."""

import pytest
import torch

import memopt
from memopt.accounting import step
from memopt.accounting.cuda import cuda_peak


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_no_device_is_named() -> None:
    with pytest.raises(memopt.UnsupportedCombination, match="no CUDA device"):
        cuda_peak(lambda: None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["gwt", "lomo"])
def test_peak_is_that_of_cuda(method: str) -> None:
    whole = step("llama_60m", method, batch=8, seq=256, attention="eager")
    model = whole.workload.model().cuda()
    batch = {
        key: value.cuda() if isinstance(value, torch.Tensor) else value
        for key, value in whole.workload.inputs().items()
    }
    optimizer = memopt.create(method, model, lr=1e-3)

    def one_step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    one_step()
    # kernels are chosen as on the CPU in a trace, and blocks of 512 bytes are not counted
    assert whole.peak == pytest.approx(cuda_peak(one_step), rel=0.03)
