"""The 8-bit code and rounding against bitsandbytes, where it is installed."""

import math

import pytest
import torch

from memopt.states import blockwise

functional = pytest.importorskip("bitsandbytes.functional")


@pytest.mark.parametrize("signed", [True, False])
def test_code_table(signed) -> None:
    theirs = functional.create_dynamic_map(signed=signed).sort().values
    torch.testing.assert_close(blockwise.code_values(signed), theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("numel", [256, 1000, 4096])
def test_rounding_is_as_near(signed, numel) -> None:
    value = torch.randn(numel) if signed else torch.randn(numel).square()
    codes, state = functional.quantize_blockwise(
        value, code=functional.create_dynamic_map(signed=signed), blocksize=blockwise.BLOCK
    )
    theirs = functional.dequantize_blockwise(codes, state)
    ours_codes = torch.zeros(numel, dtype=torch.int8 if signed else torch.uint8)
    absmax = torch.zeros(math.ceil(numel / blockwise.BLOCK))
    blockwise.quantize_(value, ours_codes, absmax)
    ours = blockwise.dequantize(ours_codes, absmax)
    torch.testing.assert_close(absmax, state.absmax, rtol=0, atol=0)
    # never farther from the value than theirs, whose boundaries are off by 3e-5 of the maximum;
    # 4e-7 is where ours keeps a positive second moment from vanishing
    scale = absmax.repeat_interleave(blockwise.BLOCK)[:numel]
    excess = ((ours - value).abs() - (theirs - value).abs()) / scale
    assert float(excess.min()) > -4e-5 and float(excess.max()) < 4e-7
