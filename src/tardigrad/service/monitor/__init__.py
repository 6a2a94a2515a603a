"""Status, metrics, logs and progress of a server, for its operator."""
