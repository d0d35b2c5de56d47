"""CDAG's Theorem 1: gradients that teach a child its latent, by angles and in training."""
