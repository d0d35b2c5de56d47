"""Theorem 5, Table 1 and Section 5: latent hierarchies, in theory and in trained networks."""
