"""What a config would do, without training: `tardigrad plan`."""
