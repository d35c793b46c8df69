"""Searches over layouts and clocks, and the Optuna studies in which people see them.

Fronts: exact (`exact`, `exact_stages`) or by NSGA-II (`genome`, `breeding`, `nsga2`, `local_search`), in one process or
many on one study (`sharing`, `queue`). The next real run: `acquire`, `remaining`. Studies: where they live (`storage`),
many trials at once (`bulk`), what a dashboard shows (`display`), finished searches (`studies`), real runs (`measured`).
Nothing here knows physics: `jointopt.search.problem.Problem` is all a search sees. Everything is minimised.
"""
