"""What ranks would do that nobody here has: time, efficiency and joules with intervals, from a study on fewer ranks.

A run is a sum of parts, each with the shape that its physics has (curves.py); a grid posterior says how far each may lie
(posterior.py). Knows no framework and no MPI.
"""

__all__: list[str] = []
