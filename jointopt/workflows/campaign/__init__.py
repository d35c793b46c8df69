"""What `tune` and `validate` share: candidates, earlier runs, expectations, the record of every run."""
