"""The statements behind GaLore: gradients that become low rank, fixed projections, memory."""

from joma.studies.galore.galore_theory.study import STUDY

__all__ = ["STUDY"]
