"""Simulation in virtual time: delays, starts, the planner, the engine and its executors."""
