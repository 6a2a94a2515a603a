"""One file a paper; each reads like the paper's pseudo-code, with its equation numbers."""
