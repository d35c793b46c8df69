"""A clock per instruction: the schedule as a graph, what a clock costs there, and solvers of least energy."""
