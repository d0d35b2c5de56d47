"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "probes/lengths.py lengths_of | off by one | "
    "most = max(1, most - 1 - (padding if isinstance(padding, int) and padding > 0 else 0)) |  >  ->  >= ": (
        "A padding token of number 0 takes 0 away, as no padding token does."
    ),
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
