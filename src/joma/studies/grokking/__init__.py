"""Grokking: how much data of a group operation a small network needs, and what it then has learned (Li2)."""
