"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {
    "measure/power_law.py _fitted | stale | usable[:, -1] = False  # a tail of one | usable[:, -1] -> _": (
        "The mean of a tail of one lies exactly 0 above its beginning, which EVEN has refused already."
    ),
    "probes/lengths.py lengths_of | off by one | "
    "most = max(1, most - 1 - (padding if isinstance(padding, int) and padding > 0 else 0)) |  >  ->  >= ": (
        "A padding token of number 0 takes 0 away, as no padding token does."
    ),
}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
