"""Logs of training programs: which of their iterations count, and what these took."""
