"""Formulas of time, memory, traffic, power and heat: pure array functions; only ``cost_model.py`` knows columns."""
