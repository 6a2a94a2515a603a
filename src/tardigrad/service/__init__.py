"""The real thing: a server and clients over a network, driving the same core as the simulator."""
