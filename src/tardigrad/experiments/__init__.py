"""Config, run, compare: what a user does with all the rest."""
