"""Figures 6 and 8: attention entropy over the training of language models."""
