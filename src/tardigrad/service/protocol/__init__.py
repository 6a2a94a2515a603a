"""What travels between server and clients: messages, vectors, refusals, task settings."""
