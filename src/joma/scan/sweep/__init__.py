"""Measuring the checkpoints of a series one after the other: what is read, what is recorded, what is left out."""
