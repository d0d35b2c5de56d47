"""Scan&Snap: what one layer of attention learns first, and when it stops (Tian et al. 2023)."""
