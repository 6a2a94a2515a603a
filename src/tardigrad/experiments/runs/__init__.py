"""One run, simulated or served, from the config to the result and its folder."""
