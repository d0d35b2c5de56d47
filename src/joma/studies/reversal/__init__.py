"""The reversal curse and chain of thought: one learns what one sees (Zhu et al. 2024)."""
