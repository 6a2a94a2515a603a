"""The live page of runs: reads their events as they are written, and shows them in a browser."""
