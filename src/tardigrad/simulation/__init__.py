"""Virtual time: delays, the planner that looks ahead, the engine that commits in order."""
