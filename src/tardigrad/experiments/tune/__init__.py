"""The search for good settings."""
