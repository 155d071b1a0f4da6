"""What every method does, but for the limits that `memopt.catalog` declares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capability:
    """One thing that every method does, except where `Method.limits` says that it does not.

    `tests/conformance` holds each method to it, and each exception to being one.

    Attributes:
        group: heading under which docs/conformance.md has it.
        says: what is promised.
        refused: whether a method that lacks it says so by an error (otherwise it cannot know that
            it is asked, as where torch's own class takes any group key).
    """

    group: str
    says: str
    refused: bool = True


CAPABILITIES: dict[str, Capability] = {
    # ---- the loop
    "closure": Capability(
        "Loop", "`step(closure)` recomputes with autograd on and returns the closure's loss"
    ),
    "groups": Capability(
        "Loop",
        "each parameter group has hyperparameters of its own; `add_param_group` at any time, "
        "the new parameters beginning at their own first step",
    ),
    "schedulers": Capability("Loop", "the rate that a scheduler of torch sets is the one applied"),
    "maximize": Capability("Loop", "`maximize=True` follows the opposite gradient, bit for bit"),
    "frozen": Capability(
        "Loop", "frozen and unused parameters stay and keep no state; thawed ones join"
    ),
    "tied": Capability("Loop", "tied weights have one state and one update"),
    "micro_batches": Capability(
        "Loop",
        "k backward passes, then one `step()`, equal one pass over all of the batch",
        refused=False,
    ),
    "clipping": Capability(
        "Loop", "`clip_grad_norm_` between backward and `step()` clips", refused=False
    ),
    "compile": Capability("Loop", "the model may be under `torch.compile` (tried: eager backend)"),
    # ---- state
    "determinism": Capability(
        "State", "two runs have the same bits, whatever torch's global generator does"
    ),
    "seeds": Capability(
        "State",
        "random choices follow parameter names: reordered or inserted parameters change no "
        "other parameter's run",
    ),
    "resume": Capability(
        "State",
        "a run that stops at any step and goes on from `torch.load(weights_only=True)` ends with "
        "the bits of an undisturbed one",
    ),
    "copies": Capability("State", "deep and pickled copies go on alike"),
    "state_dtype": Capability(
        "State", "state is float32 under narrower weights, float64 under float64", refused=False
    ),
    "foreign_state": Capability(
        "State", "another method's `state_dict` is refused before anything is loaded", refused=False
    ),
    "own_state": Capability(
        "State", "loading copies: training leaves the loaded `state_dict` as it was", refused=False
    ),
    "transient": Capability(
        "State", "what a step needs for a moment is a small multiple of one parameter"
    ),
    # ---- weights
    "bf16_weights": Capability("Weights", "bfloat16 weights"),
    "convolution": Capability("Weights", "the method's own algorithm on 4-D weights"),
    "one_dim": Capability(
        "Weights", "the method's own algorithm on 1-D and 0-D weights (otherwise plain Adam)"
    ),
    "strides": Capability("Weights", "gradients and weights of any strides"),
    # ---- input
    "arguments": Capability("Input", "unknown arguments are refused with the nearest name"),
    "group_keys": Capability(
        "Input", "unknown group keys are refused with the nearest name", refused=False
    ),
    "nonfinite": Capability(
        "Input",
        "a NaN or infinite gradient is named, or by `nonfinite='skip'` left out and counted",
        refused=False,
    ),
    "untouched": Capability(
        "Input",
        "after a NaN or infinite gradient every weight and state is what it was before the step",
        refused=False,
    ),
    # ---- gradients used in backward
    "in_backward": Capability("Backward", "`memopt.update_in_backward`: the same bits as `step()`"),
    "accumulation": Capability(
        "Backward", "`memopt.accumulate_in_backward`: micro-gradients enter the state and are freed"
    ),
    # ---- elsewhere
    "trainer": Capability(
        "Trainer", "trains, stops and resumes with equal bits under transformers' Trainer"
    ),
    "fsdp2": Capability(
        "Processes",
        "weights sharded by `torch.distributed.fsdp.fully_shard`: two processes train as one does",
        refused=False,
    ),
}
"""What every method does; `Method.limits` has the exceptions, by these keys, with reasons."""
