"""The helper of a secure run as a service: its calls, and its process from start to stop."""
