"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "studies/isotropic/_forms.py sample_mean | accumulation | "
    "total, square = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64) | "
    "torch.float64 -> torch.float32": "Zeros, to which samples of float64 are added: the sums are float64 either way.",
    "studies/rebound/rebound_onset/run.py _validation.measure | wrong key kept | count = inputs[0].numel() | "
    "0 -> -1": "The texts are stacked: each has as many tokens as the others.",
    "studies/rebound/layer_lottery/run.py learned | wrong key kept | "
    "return np.asarray(alive(run, NETWORKS)[0] & (best_loss(run, NETWORKS)[0] < bound)) | 0 -> -1": "The study trains "
    "with one learning rate: the first is the last.",
    "studies/rebound/layer_lottery/run.py learned | wrong key kept | "
    "return np.asarray(alive(run, NETWORKS)[0] & (best_loss(run, NETWORKS)[0] < bound)) | 0 -> -1 (2)": "The study "
    "trains with one learning rate: the first is the last.",
    "studies/salience/eq6/run.py lowest_entropy | accumulation | "
    "fine = torch.linspace(fine[max(best - 1, 0)], fine[min(best + 1, len(fine) - 1)], 60, dtype=torch.float64) | "
    "torch.float64 -> torch.float32": "Only the times at which a flat minimum is looked for: the entropies there are "
    "float64 either way, and the smallest moves by 2e-11, less than the grid is off.",
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
