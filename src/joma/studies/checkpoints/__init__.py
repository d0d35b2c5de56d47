"""Figures 7 and 10: what trained checkpoints of other people's architectures show."""
