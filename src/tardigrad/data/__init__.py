"""Data sets, how they are divided among clients, and evaluation."""
