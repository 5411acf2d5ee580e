"""Readers of other toolkits' checkpoints."""
