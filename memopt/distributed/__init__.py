"""Several processes without DDP's gradient buckets, for optimizers that update in backward."""

from memopt.distributed.exchange import reduce_gradients, reduce_states, shard_states

__all__ = ["reduce_gradients", "reduce_states", "shard_states"]
