"""Kits that several subjects train with: language models, their curves and what is read off them."""
