"""Faults that change nothing that anybody could see, one by one, each with its reason."""

EQUIVALENT: dict[str, str] = {}
"""From the key of a fault (Fault.key of plant_faults.py) to why no test can see it."""
