"""Theorem 1: the block, its first integral, and how far it carries: rates, queries, SGD, softmax, coherence."""
