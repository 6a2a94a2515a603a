"""The papers' claims, run again and judged."""
