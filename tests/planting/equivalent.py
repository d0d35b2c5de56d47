"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "studies/isotropic/_forms.py sample_mean | accumulation | "
    "total, square = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64) | "
    "torch.float64 -> torch.float32": "Zeros, to which samples of float64 are added: the sums are float64 either way.",
    "studies/salience/eq6/run.py lowest_entropy | accumulation | "
    "fine = torch.linspace(fine[max(best - 1, 0)], fine[min(best + 1, len(fine) - 1)], 60, dtype=torch.float64) | "
    "torch.float64 -> torch.float32": "Only the times at which a flat minimum is looked for: the entropies there are "
    "float64 either way, and the smallest moves by 2e-11, less than the grid is off.",
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
