"""Gradients of several losses on shared weights, made one before the optimizer sees them."""

from memopt.gradients.gcond import GCond

__all__ = ["GCond"]
