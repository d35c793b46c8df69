"""Statements of three papers, each checked against today's predictions; ``python -m jointopt.studies.statements``."""
