"""The third driver of the core: a run on the nodes of a Flower grid.

Nothing here imports Flower; `tardigrad.flower` connects it with Flower's own types.
"""
