"""Several processes: AdamA and its like without DDP, and whole checkpoints of sharded state."""

from memopt.distributed.exchange import reduce_gradients, reduce_states, shard_states
from memopt.distributed.state import full_state_dict

__all__ = ["full_state_dict", "reduce_gradients", "reduce_states", "shard_states"]
