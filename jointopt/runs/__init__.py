"""Measured runs: tables and their cells, what a GPU can have done, workloads, the append-only store."""
