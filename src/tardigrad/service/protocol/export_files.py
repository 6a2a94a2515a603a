"""The files of an export, as an operator receives it."""

from __future__ import annotations

MODEL, CONFIG, PRIVACY, EXPORT = "model.safetensors", "config.toml", "privacy.md", "export.json"
FILES = (MODEL, CONFIG, PRIVACY, EXPORT)
"""The files that an export may consist of, in this order."""
