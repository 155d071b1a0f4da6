"""As pretrain, on what the pretraining left."""

import experiments.pretrain  # noqa: F401
