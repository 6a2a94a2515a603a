"""Tables in files: reading them, the kinds of their columns, and their preparation for a model."""
