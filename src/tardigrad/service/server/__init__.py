"""The server: remote procedure calls, the coordinator, the state of the run and of the model."""
