"""Formulas of time, memory, traffic, power and heat: pure array functions; only ``estimate.py`` knows columns."""
