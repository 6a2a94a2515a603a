"""Clip, weigh, noise; accountants; the participation ledger."""
