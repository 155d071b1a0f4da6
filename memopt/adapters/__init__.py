"""Methods that train small added weights: LoRA, ReLoRA, and RSO in layers.

They stand on peft, which this room alone imports, and only when adapters are made. Their classes
take the model, not parameters: they change it.
"""

from memopt.adapters.layers import merge_adapters
from memopt.adapters.lora import LoRA
from memopt.adapters.relora import ReLoRA
from memopt.adapters.rso import RSOLayers

__all__ = ["LoRA", "RSOLayers", "ReLoRA", "merge_adapters"]
