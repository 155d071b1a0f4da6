"""Memory-efficient optimizers for language models, as their papers have them, and their bytes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memopt.blocks import block_groups
from memopt.catalog import METHODS, create
from memopt.errors import NonFiniteGradientError, UnsupportedCombination
from memopt.params import param_groups

if TYPE_CHECKING:
    from memopt.adapters import LoRA, ReLoRA, merge_adapters
    from memopt.backward import accumulate_in_backward, update_in_backward
    from memopt.optimizers.adafactor import Adafactor
    from memopt.optimizers.adalomo import AdaLomo
    from memopt.optimizers.adam8bit import Adam8bit
    from memopt.optimizers.adam_mini import AdamMini
    from memopt.optimizers.adama import AdamA
    from memopt.optimizers.adams import AdamS
    from memopt.optimizers.adamw import AdamW
    from memopt.optimizers.apollo import APOLLO, APOLLOMini
    from memopt.optimizers.coap import COAP
    from memopt.optimizers.fira import Fira
    from memopt.optimizers.flora import Flora
    from memopt.optimizers.foam import FOAM
    from memopt.optimizers.galore import GaLore
    from memopt.optimizers.gwt import GWT
    from memopt.optimizers.lion import Lion
    from memopt.optimizers.lomo import LOMO
    from memopt.optimizers.lora_pre import LoRAPre
    from memopt.optimizers.muon import Muon
    from memopt.optimizers.rso import RSO
    from memopt.optimizers.sgd import SGD
    from memopt.optimizers.zero1_adamw import ZeRO1AdamW

__all__ = [
    "APOLLO",
    "COAP",
    "FOAM",
    "GWT",
    "LOMO",
    "METHODS",
    "SGD",
    "APOLLOMini",
    "AdaLomo",
    "Adafactor",
    "Adam8bit",
    "AdamA",
    "AdamMini",
    "AdamS",
    "AdamW",
    "Fira",
    "Flora",
    "GaLore",
    "Lion",
    "Muon",
    "LoRA",
    "LoRAPre",
    "RSO",
    "NonFiniteGradientError",
    "ReLoRA",
    "UnsupportedCombination",
    "ZeRO1AdamW",
    "accounting",
    "accumulate_in_backward",
    "block_groups",
    "create",
    "merge_adapters",
    "param_groups",
    "update_in_backward",
]

_CLASSES = {method.factory.partition(":")[2]: method.factory for method in METHODS.values()}
_TIMING = ("accumulate_in_backward", "update_in_backward")


def __getattr__(name: str) -> Any:
    """Loads optimizers, the timing engine and the accounting at first use."""
    if name in _CLASSES:
        module, _, attribute = _CLASSES[name].partition(":")
        return getattr(import_module(module), attribute)
    if name in _TIMING:
        return getattr(import_module("memopt.backward"), name)
    if name == "merge_adapters":
        return getattr(import_module("memopt.adapters"), name)
    if name == "accounting":
        return import_module("memopt.accounting")
    raise AttributeError(f"module 'memopt' has no attribute {name!r}")
