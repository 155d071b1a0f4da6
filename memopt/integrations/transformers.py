"""Every method of the catalog under transformers' Trainer.

What Trainer's loop asks of a method, and where it is kept:

- accumulation: Trainer calls backward ``gradient_accumulation_steps`` times, then ``step()``.
  Methods that use gradients in backward are told how often. The last update of an epoch may have
  fewer; ``step()`` closes it all the same.
- the loss: Trainer divides it by the number of micro-batches, or by the number of labels in all of
  them (``num_items_in_batch``, where the model takes it). Either way each micro-gradient is its
  share of the whole gradient, which is what all methods expect. A model that takes the number and
  averages all the same (BERT's classifiers) gets gradients too large by the number of
  micro-batches; for such a model set ``trainer.model_accepts_loss_kwargs = False``.
- clipping: Trainer clips between backward and ``step()``, where methods that use gradients in
  backward have none left. That is refused here, with ``max_grad_norm`` to be set to 0.
- schedulers: Trainer's scale each group's rate, which is read at each update.
- resumption: Trainer saves ``state_dict()`` between updates and loads it with ``weights_only``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memopt import catalog
from memopt.errors import UnsupportedCombination
from memopt.params import Targets


def optimizers(
    name: str, model: nn.Module, args: Any, *, targets: Targets = "auto", **arguments: Any
) -> tuple[torch.optim.Optimizer, None]:
    """A method's optimizer for ``Trainer(model, args, optimizers=optimizers(...))``.

    Args:
        name: catalog name, for example ``"gwt"``.
        model: the model that Trainer gets, on its device and in its dtype.
        args: the ``TrainingArguments`` that Trainer gets. They give the learning rate, the number
            of micro-batches and, where it is not 0, the weight decay (which here is for all
            weights, norms and biases too), as far as ``arguments`` do not.
        targets: which layers the method treats, see `memopt.param_groups`.
        **arguments: the method's own.

    Returns:
        The optimizer, and None: Trainer makes the scheduler of its arguments.

    Raises:
        ValueError: unknown method or argument, with the nearest; a bad value.
        UnsupportedCombination: clipping, fp16, several processes or DeepSpeed with a method that
            uses gradients in backward; a method that Trainer cannot drive.
        TypeError: no model, or no ``TrainingArguments``.
    """
    method = catalog.get(name)
    if not hasattr(args, "gradient_accumulation_steps"):
        raise TypeError(
            f"optimizers wants the TrainingArguments of the Trainer, got a {type(args).__name__}"
        )
    _refuse(method, args)
    given = {"lr": args.learning_rate}
    if args.weight_decay:
        given["weight_decay"] = args.weight_decay
    given |= method.in_loop(args.gradient_accumulation_steps, args.max_grad_norm)
    return catalog.create(name, model, targets=targets, **{**given, **arguments}), None


def _refuse(method: catalog.Method, args: Any) -> None:
    if "trainer" in method.limits:
        raise UnsupportedCombination(f"{method.title} and Trainer: {method.limits['trainer']}.")
    if method.timing == "step":
        return
    obstacles = {
        "fp16=True": (args.fp16, "the loss scaler knows of an overflow too late: use bf16"),
        "several processes": (args.world_size > 1, "DDP all-reduces gradients after their use"),
        "deepspeed": (args.deepspeed, "DeepSpeed holds the gradients itself"),
    }
    for what, (asked, why) in obstacles.items():
        if asked:
            raise UnsupportedCombination(
                f"{what} and {method.title}, which uses gradients during backward: {why}. Or "
                "choose a method that updates at step()."
            )
