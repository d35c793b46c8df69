"""The catalogue: GPUs, models, clusters, frameworks; each figure with its source."""
