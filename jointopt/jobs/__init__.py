"""The job as frozen objects: model, training, cluster, search, constraints."""
