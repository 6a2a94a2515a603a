"""Differential privacy: settings, accounting, noise, the upload layers, the statement and the audit."""
