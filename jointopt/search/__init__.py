"""Searches over layouts and clocks: the exact front of uniform clocks, and NSGA-II with one clock per stage.

Nothing here knows physics: `jointopt.search.problem.Problem` is all a search sees. Everything is minimised.
"""
