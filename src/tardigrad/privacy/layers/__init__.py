"""Upload layers of privacy: clip, central noise, private versions, local noise, canaries."""
