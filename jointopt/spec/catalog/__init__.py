"""What is known: GPUs, models, clusters, frameworks; each figure with its source."""
