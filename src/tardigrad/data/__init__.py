"""Data sets, and who holds which part of them."""
