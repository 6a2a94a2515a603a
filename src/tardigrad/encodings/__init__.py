"""Encodings: how the numbers of an upload travel. One file for each; `layer.py` puts them to use."""
