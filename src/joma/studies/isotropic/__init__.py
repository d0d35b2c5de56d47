"""Lemmas 1 to 4 and Theorem 3: nonlinear MLPs under isotropic inputs."""
