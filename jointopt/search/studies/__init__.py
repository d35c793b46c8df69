"""Everything of Optuna: where studies live, what people see of a search, queues of many workers, real runs."""
