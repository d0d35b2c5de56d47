"""The records of paper scale under results/: in the checkout, but not in a wheel or a source archive."""

from pathlib import Path

import pytest

RECORDS = Path(__file__).parents[1] / "results"
WHY = "needs the kept records: results/ is in the checkout alone"
needs_records = pytest.mark.skipif(not RECORDS.is_dir(), reason=WHY)


def differences(now, kept, place=""):
    """Where two values of JSON differ, numbers by more than other machines round."""
    if isinstance(now, dict) and isinstance(kept, dict):
        for key in sorted(now.keys() | kept.keys()):
            if key in now and key in kept:
                yield from differences(now[key], kept[key], f"{place}/{key}")
            else:
                yield f"{place}/{key} is in one of them alone"
    elif isinstance(now, list) and isinstance(kept, list) and len(now) == len(kept):
        for i, pair in enumerate(zip(now, kept, strict=True)):
            yield from differences(*pair, f"{place}/{i}")
    elif isinstance(now, float) and isinstance(kept, int | float):
        if abs(now - kept) > 1e-6 * abs(kept) + 1e-9:
            yield f"{place}: {now} was {kept}"
    elif now != kept:
        yield f"{place}: {now!r} was {kept!r}"
