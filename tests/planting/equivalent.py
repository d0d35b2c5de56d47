"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "scan/formats/adapter.py _triangle | mask | return torch.where(r.diagonal() < 0, -1.0, 1.0).to(r)[:, None] * r"
    " | -1.0, 1.0 -> 1.0, -1.0": "Two triangles are multiplied: both change their sign, and their product does not.",
    "host/words.py _container | off by one | plain = len(value) <= longest and all(isinstance(one, int | float | str |"
    " None) for one in inside) |  <=  ->  < ": "So many entries are written in three times as many characters or more,"
    " too many for the check below.",
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
