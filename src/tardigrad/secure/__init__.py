"""Secure aggregation: a server that sees only masked uploads, and helpers that see only seeds and sums."""
