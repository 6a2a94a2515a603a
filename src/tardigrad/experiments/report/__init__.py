"""The report of runs and comparisons: one HTML file that needs nothing else, and each chart as a picture."""
