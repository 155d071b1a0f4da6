"""Seeds made of words and numbers, so that random draws follow names and not positions."""

from __future__ import annotations

import hashlib

import torch


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator seeded by the key, the same on every device and machine.

    Args:
        key: for example ``(projection_seed, parameter name, refresh number)``.
    """
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
