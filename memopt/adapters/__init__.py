"""Methods that train small added weights in place of the model's own: LoRA and ReLoRA.

They stand on peft, which this room alone imports, and only when adapters are made. Their classes
take the model, not parameters: they change it.
"""

from memopt.adapters.layers import merge_adapters
from memopt.adapters.lora import LoRA
from memopt.adapters.relora import ReLoRA

__all__ = ["LoRA", "ReLoRA", "merge_adapters"]
