"""What operators see: status, metrics, logs, counters."""
