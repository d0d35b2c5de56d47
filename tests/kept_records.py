"""The records of paper scale under results/: in the checkout, but not in a wheel or a source archive."""

from pathlib import Path

import pytest

RECORDS = Path(__file__).parents[1] / "results"
WHY = "needs the kept records: results/ is in the checkout alone"
needs_records = pytest.mark.skipif(not RECORDS.is_dir(), reason=WHY)
