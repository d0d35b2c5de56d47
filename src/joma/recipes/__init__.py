"""Recipes that several subjects share: language models, their curves and what they show."""
