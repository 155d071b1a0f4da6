"""One file a method, each readable beside its paper."""
