"""What every test stands on: no network, one thread, fixed seeds, optional real data."""

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch or a Hugging Face library. Only tests are cut off from the hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

REPO = Path(__file__).resolve().parents[1]

# The same examples every time, and no time limit on a busy machine.
settings.register_profile("memopt", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("memopt")


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Seeds every generator that a test may draw from, and keeps torch on one thread."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return REPO


@pytest.fixture(scope="session")
def shared() -> Path:
    """The optional folder of real data files; the test is skipped where there is none."""
    folder = Path(os.environ.get("MEMOPT_SHARED", REPO.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data files in {folder} (set MEMOPT_SHARED)")
    return folder


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips `gpu` tests where there is no CUDA device; marks users of `shared`."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared)
        if item.get_closest_marker("gpu"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
