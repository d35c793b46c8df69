"""Shared by `tune` and `validate`: candidates, earlier runs, expectations, the record of every run."""
