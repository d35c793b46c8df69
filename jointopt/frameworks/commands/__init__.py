"""Commands: which program they start, and how its options are read."""
