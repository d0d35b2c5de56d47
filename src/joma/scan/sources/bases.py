"""A series of adapters, each read on the base that the user names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from joma.host.errors import BadInput
from joma.scan.checkpoint import Place
from joma.scan.formats.opening import ALONE
from joma.scan.sources.folder import LocalFolder
from joma.scan.sources.series import Series

ALONE_WORD = "none"


def on_base(series: Series, base: str | Path) -> Series:
    """The series with its adapters merged into the model in the folder `base`; "none": each is measured alone.

    >>> import tempfile
    >>> from joma.scan import open_series
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "adapter_model.safetensors").touch()
    ...     series = open_series(folder, downloads=Path(folder))
    ...     on_base(series, "none").places[0].base
    PosixPath('.')
    """
    chosen = ALONE if str(base) == ALONE_WORD else Path(base).expanduser().resolve()
    if chosen != ALONE and not chosen.is_dir():
        raise BadInput(f"base must be the folder of a model, or {ALONE_WORD!r} for none, got {str(base)!r}")
    return replace(series, places=tuple(_on(place, chosen) for place in series.places))


def _on(place: Place, base: Path) -> Place:
    if not isinstance(place, LocalFolder):
        raise BadInput(f"base is for folders of adapters on this machine, and {place.name} is none")
    return replace(place, base=base)
