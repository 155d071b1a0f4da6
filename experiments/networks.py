"""Small networks for small images, as models that transformers' Trainer can train.

They are PyTorch's own layers with PyTorch's own initialisation. None of them has a ``ModuleList``,
so `memopt.param_groups` offers every linear and convolution layer to a method.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from experiments.errors import UserError, nearest
from experiments.models import rounded
from experiments.spec import ModelSpec

TIMES = 1000  # of diffusion, with DDPM's linear variances
VARIANCES = (1e-4, 0.02)


class Network(PreTrainedModel):
    """A model whose ``sizes`` are the keys of ``network`` in its YAML, with their defaults."""

    config_class = PretrainedConfig
    sizes: ClassVar[dict[str, int]]

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.build(**{key: getattr(config, key) for key in self.sizes})
        self.post_init()

    def build(self, **sizes: int) -> None:
        """Makes the layers."""
        raise NotImplementedError

    def _init_weights(self, module: nn.Module) -> None:
        """PyTorch's own initialisation stays."""


class Classifier(Network):
    """A network ``layers`` from images (rows, 1, side, side) to one score a class."""

    layers: nn.Module

    def forward(self, images: Tensor, labels: Tensor) -> ImageClassifierOutput:
        """Mean cross entropy over the rows, and the scores."""
        scores = self.layers(images)
        loss = functional.cross_entropy(scores.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=scores)


class ConvNet(Classifier):
    """Four 3 x 3 convolutions (the third halves the image), mean over pixels, linear.

    The three that lead to ``2 width`` channels are large enough for COAP's Tucker-2 at width 32.
    """

    sizes: ClassVar = {"width": 32, "classes": 10}

    def build(self, *, width: int, classes: int) -> None:
        """See the class."""
        wide = 2 * width
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, wide, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(wide, wide, 3, padding=1, stride=2), nn.ReLU()),
            *(nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes)),
        )


class MLP(Classifier):
    """``depth`` hidden layers of ``width`` with ReLU."""

    sizes: ClassVar = {"pixels": 64, "width": 128, "depth": 5, "classes": 10}

    def build(self, *, pixels: int, width: int, depth: int, classes: int) -> None:
        """See the class."""
        hidden: list[nn.Module] = []
        for i in range(depth):
            hidden += [nn.Linear(width if i else pixels, width), nn.ReLU()]
        self.layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, classes))


class Block(nn.Module):
    """DDPM's residual block: two convolutions, the time added between them."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.time = nn.Linear(time, outside)
        self.after = nn.Sequential(
            nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Images (rows, inside, h, w) and times (rows, time) to (rows, outside, h, w)."""
        inner = self.before(x) + self.time(time)[:, :, None, None]
        out: Tensor = self.skip(x) + self.after(inner)
        return out


class UNet(Network):
    """DDPM's noise prediction (Ho et al., arXiv 2006.11239), with one halving and no attention."""

    sizes: ClassVar = {"width": 32}
    signal: Tensor
    frequencies: Tensor

    def build(self, *, width: int) -> None:
        """See the class."""
        wide, time = 2 * width, 2 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.high = Block(width, width, time)
        self.down = nn.Conv2d(width, wide, 3, padding=1, stride=2)
        self.low_1, self.low_2 = Block(wide, wide, time), Block(wide, wide, time)
        self.up = Block(wide + width, width, time)
        self.leave = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1)
        )
        kept = (1 - torch.linspace(*VARIANCES, TIMES, dtype=torch.float64)).cumprod(0)
        self.register_buffer("signal", kept.float(), persistent=False)
        waves = torch.exp(-math.log(10_000) * torch.arange(width // 2) / (width // 2))
        self.register_buffer("frequencies", waves, persistent=False)

    def predict(self, noisy: Tensor, times: Tensor) -> Tensor:
        """The noise in images (rows, 1, side, side) at ``times`` (rows,), from 0 to TIMES - 1."""
        angle = times[:, None] * self.frequencies
        time = self.time(torch.cat([angle.sin(), angle.cos()], dim=1))
        high = self.high(self.enter(noisy), time)
        low = self.low_2(self.low_1(self.down(high), time), time)
        up = functional.interpolate(low, scale_factor=2.0, mode="nearest")
        out: Tensor = self.leave(self.up(torch.cat([up, high], dim=1), time))
        return out

    def forward(
        self, images: Tensor, noise: Tensor | None = None, times: Tensor | None = None
    ) -> ImageClassifierOutput:
        """Mean squared error of the predicted noise; noise and times are drawn if not given."""
        noise = torch.randn_like(images) if noise is None else noise
        if times is None:
            times = torch.randint(TIMES, (len(images),), device=images.device)
        kept = self.signal[times][:, None, None, None]
        guess = self.predict(kept.sqrt() * images + (1 - kept).sqrt() * noise, times)
        return ImageClassifierOutput(loss=functional.mse_loss(guess.float(), noise.float()))


class TwoTasks(Network):
    """A few hidden numbers from which one head rebuilds the image and another reads the digit."""

    sizes: ClassVar = {"pixels": 64, "hidden": 8, "classes": 10}

    def build(self, *, pixels: int, hidden: int, classes: int) -> None:
        """See the class."""
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.Tanh())
        self.image_head = nn.Linear(hidden, pixels)
        self.digit_head = nn.Linear(hidden, classes)

    def image_loss(self, images: Tensor) -> Tensor:
        """Mean squared error of the rebuilt pixels, in their unit (from -1 to 1)."""
        return functional.mse_loss(self.image_head(self.encoder(images)), images.flatten(1))

    def scores(self, images: Tensor) -> Tensor:
        """Scores of the classes, (rows, classes)."""
        out: Tensor = self.digit_head(self.encoder(images))
        return out


KINDS: dict[str, type[Network]] = {
    "conv_net": ConvNet,
    "mlp": MLP,
    "unet": UNet,
    "two_tasks": TwoTasks,
}


def build(spec: ModelSpec, *, seed: int, dtype: str) -> Network:
    """A network with fresh weights, drawn in float32 and then rounded.

    Args:
        spec: see :func:`fresh`.
        seed: of the weights.
        dtype: ``bfloat16`` rounds the weights; everything else leaves them in float32.
    """
    torch.manual_seed(seed)
    network = fresh(spec)
    rounded(network, dtype)
    return network


def fresh(spec: ModelSpec) -> Network:
    """A network whose weights come from torch's global random numbers.

    Args:
        spec: its ``shape`` holds ``model_type``, a key of `KINDS`, and sizes of that network.

    Raises:
        UserError: no such network or size.
    """
    given: dict[str, Any] = dict(spec.shape or {})
    kind = str(given.pop("model_type", None))
    if kind not in KINDS:
        raise UserError(f"model {spec.name}: unknown network {kind!r}{nearest(kind, KINDS)}")
    sizes = KINDS[kind].sizes
    for key, value in given.items():
        if key not in sizes:
            raise UserError(f"model {spec.name}: unknown key {key!r}{nearest(key, sizes)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"model {spec.name}: {key} must be a whole number, got {value!r}")
    return KINDS[kind](PretrainedConfig(**sizes | given))
