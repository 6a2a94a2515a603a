"""Several algorithms and seeds side by side."""
