"""The config file: its tables, how it is read, and what can be named in it."""
