"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "studies/__init__.py title | wrong key kept | place = Path(__path__[0]) / room(name) / _file(name) | 0 -> -1": (
        "The package has one folder: its first is its last."
    ),
    "studies/galore/galore_table/run.py Trainer._train | wrong key kept | "
    "missing = [[np.nan] * len(found[0])] * (len(looks) - len(found)) | 0 -> -1": (
        "Every look has as many losses as there are sources of text: the first row is as long as the last."
    ),
    "studies/hierarchy/shallow_first/networks.py _ranks | unit | return (left + right).double() / 2 |  /  ->  * ": (
        "Ranks are only correlated, and a correlation does not change when all ranks are multiplied by four."
    ),
    "studies/inductive_bias/inductive_bias/hypercube.py Cubes.labels | mask | return torch.where(torch.einsum("
    '"mti,mpi->mtp", planes, bits[..., : self.cube.informative]) > 0, 1.0, -1.0) | 1.0, -1.0 -> -1.0, 1.0': (
        "All labels change sign, those that are fitted and those that are asked for: the classifiers change sign too, "
        "and every accuracy stays. The planes are random in sign anyway."
    ),
    "studies/inductive_bias/inductive_bias/random_labels.py Digits._stream | wrong key kept | "
    "return streams(self.config.seed, [seed], step, device=self.config.device)[0] | 0 -> -1": (
        "One seed is given and one stream comes back: the first is the last."
    ),
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
