"""One file for each data set, in the format its publisher uses."""
