"""Searches over layouts and clocks, and the Optuna studies in which people see them.

Fronts: exact (`exact`) or by NSGA-II (`breeding`, `nsga2`, `local_search`). The next real run: `acquire`.
Optuna studies of searches and real runs, and searches by many workers: `studies`.
Nothing here knows physics: `jointopt.search.problem.Problem` is all a search sees. Everything is minimised.
"""
