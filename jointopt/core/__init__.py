"""The ground floor: the schema of every column, the exception tree, units, whole-file writes, budgets."""
