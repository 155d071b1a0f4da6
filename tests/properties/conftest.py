"""Fixtures of the property tests."""

from collections.abc import Iterator

import pytest

from memopt.subspaces import tucker


@pytest.fixture(scope="module")
def small_kernels() -> Iterator[None]:
    """COAP projects even the small convolution kernels of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tucker, "PLAIN_ELEMENTS", 1)
        yield
