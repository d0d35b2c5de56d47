"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "scan/formats/adapter.py _triangle | mask | return torch.where(r.diagonal() < 0, -1.0, 1.0).to(r)[:, None] * r"
    " | -1.0, 1.0 -> 1.0, -1.0": "Two triangles are multiplied: both change their sign, and their product does not.",
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
