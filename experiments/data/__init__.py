"""Data: from sources (hub, local files, installed packages) to what training reads.

``python -m experiments.data prepare DATA.yaml OUT_DIR`` makes a prepared folder once;
:func:`load_tokens`, :func:`load_classification`, :func:`load_images` and
:func:`load_instructions` open it.
"""

from experiments.data.classification import load_classification
from experiments.data.images import load_images
from experiments.data.instruction import load_instructions
from experiments.data.tokens import TokenData, load_tokens

__all__ = [
    "TokenData",
    "load_classification",
    "load_images",
    "load_instructions",
    "load_tokens",
]
