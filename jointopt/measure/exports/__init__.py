"""Exports: from a job and a plan to the words and files that start it in another framework, without that framework.

One module per target, `TARGETS` of them by name; each has one function from an `Intent` and a version to an `Export`.
"""
