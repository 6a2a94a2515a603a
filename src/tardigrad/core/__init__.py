"""The words of asynchronous federated learning: no clock, no input or output, no randomness."""
