"""Theorem 2: linear MLPs, one node and many."""
