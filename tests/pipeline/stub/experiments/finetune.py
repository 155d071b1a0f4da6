"""As pretrain, on what the pretraining left."""

import sys
from pathlib import Path

assert (Path(sys.argv[2]).parent / "adamw-0/model/config.json").exists()

import experiments.pretrain  # noqa: E402, F401
