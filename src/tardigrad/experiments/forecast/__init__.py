"""The forecast of a run from its config, without training: `tardigrad plan`."""
