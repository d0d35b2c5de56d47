"""What `joma view` calls the measures, built from their registry: the viewer opens before torch is loaded.

python docs/view_titles.py
"""

from pathlib import Path

import joma.view
from joma.host.file_kinds import OWN
from joma.host.files import write_json
from joma.measure.registry import MEASURES


def main() -> None:
    write_json(
        Path(joma.view.__file__).parent / "static" / "titles.json", {n: m.axis for n, m in MEASURES.items()}, OWN
    )


if __name__ == "__main__":
    main()
