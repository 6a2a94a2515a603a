"""The protocol between server and clients: messages, vectors, refusals, task settings."""
