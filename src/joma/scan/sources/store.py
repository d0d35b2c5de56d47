"""Checkpoints in object stores and on web servers: which there are at an address, and which step each of them is.

A folder of a store is listed. A web server lists nothing: https:// names one file of weights, or the index of several.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from joma.host import limits
from joma.host.stores import Address, StoreError, read_address
from joma.scan.errors import CheckpointError
from joma.scan.formats.checkpoint import ENDINGS, is_read
from joma.scan.formats.ranges import RangedBytes
from joma.scan.formats.tensor_file import parsed_json
from joma.scan.sources import series as moments
from joma.scan.sources.downloads import DiskCache
from joma.scan.sources.folder import is_one_model, is_weights_name, moment_of_file, stem_of
from joma.scan.sources.objects import Bucket, Listed, Web, is_plain_name
from joma.scan.sources.remote import RemoteCheckpoint
from joma.scan.sources.series import Candidate, Moment, Series, arrange, moment_in, some

_INDEX = ".index.json"
_CONFIG = "config.json"
_STATE = "trainer_state.json"


@dataclass
class StoreCheckpoint(RemoteCheckpoint):
    """A checkpoint in a store: a folder, or one file with what lies beside it."""

    store: Bucket | Web
    place: Address  # the folder
    cache: DiskCache
    name: str
    step: int
    epoch: int | None = None
    known: Mapping[str, Listed] | None = None
    """The files that it has, where they are known already; None: those of the folder."""
    single: bool = False  # one file, of which nothing but its tensors is known

    @property
    def where(self) -> str:
        return str(self.place / self.name) if self.single else str(self.place)

    @property
    def cached_as(self) -> str:
        address = f"{self.place.scheme}--{self.place.host}--{self.place.path}"
        slug = re.sub(r"[^\w.-]", "-", address)[:80].strip(".-")
        key = hashlib.sha256(f"{self.where}\n{self.identity()}".encode()).hexdigest()
        return f"{slug}/{key[:40]}"

    def identity(self) -> str:
        weights = self.weights()
        read = {name: file for name, file in self.files.items() if is_read(name, weights)}
        return moments.known_by((name, f"{file.size} {file.version}", "") for name, file in read.items())

    def listed(self) -> Mapping[str, Listed]:
        if self.known is not None:
            return self.known
        assert isinstance(self.store, Bucket)  # a web server lists nothing
        return self.store.listing(self.place)[0]

    def config(self) -> dict[str, Any] | None:
        return None if self.single else super().config()

    @contextmanager
    def folder(self) -> Iterator[Path]:
        if self.single:
            raise CheckpointError(
                f"{self.where} is a file of tensors without a config.json, so its model cannot be run"
            )
        with super().folder() as found:
            yield found

    def ranges(self, file: str) -> RangedBytes:
        return self.store.ranges(self.place / file, self.files[file])

    def right(self, file: str, path: Path) -> bool:
        """Its length: a store tells no hash that can be relied on. A file that joma did not make is never taken."""
        made = path.relative_to(self.cache.folder).parts[0] != "files"
        return made and path.stat().st_size == self.files[file].size


def open_store(text: str, cache: DiskCache) -> Series:
    """The series at an address: a folder of checkpoints, one checkpoint, or one file."""
    try:
        place = read_address(text)
    except StoreError as error:
        raise CheckpointError(str(error)) from None
    return _on_web(place, cache) if place.is_web else _in_bucket(place, cache)


def _in_bucket(place: Address, cache: DiskCache) -> Series:
    bucket = Bucket(place)
    if is_weights_name(place.name) and (found := bucket.find(place)):
        known = {place.name: found, **_config_beside(bucket, place)}
        return _one(place, StoreCheckpoint(bucket, place.parent, cache, place.name, 0, known=known, single=True))
    files, folders = bucket.listing(place)
    names = [*files, *folders]
    folder = partial(StoreCheckpoint, bucket, cache=cache)
    stepped = [name for name in folders if moment_in(name)]
    weights = [name for name in files if is_weights_name(name)]
    timed = [name for name in weights if moment_of_file(name)]
    one_model = is_one_model(names)
    itself = folder(place=place, name=place.name, step=0, known=files)
    if one_model and (moment_in(place.name) or not stepped):
        return _one(place, itself)
    if stepped and (not one_model or any(map(is_weights_name, bucket.listing(place / stepped[0])[0]))):
        candidates = [
            Candidate(n, moment_in(n), partial(_made, folder(place=place / n, name=n, step=0))) for n in stepped
        ]
        return _arranged(place, [*candidates, *_flat(place, files, timed, folder)], [*weights], timed)
    if one_model:
        return _one(place, itself)
    if timed:
        return _arranged(place, _flat(place, files, timed, folder), weights, timed)
    if weights:
        itself.weights()  # or a sentence that says which files to choose from
        return _one(place, itself)
    what = f"neither weights ({', '.join('*' + e for e in ENDINGS)}) nor folders named by their step (step100)"
    inside = f"; it holds {some(folders)}: name one, as in {place / folders[0]}" if folders else ""
    missing = f"{place} does not exist, or is empty" if not names else f"{place} holds no checkpoint: {what}{inside}"
    raise CheckpointError(missing)


def _flat(place: Address, files: Mapping[str, Listed], timed: list[str], folder: Any) -> list[Candidate]:
    """One candidate for each file that is named by its step; a config beside them is that of all."""
    config = {_CONFIG: files[_CONFIG]} if _CONFIG in files else {}
    return [
        Candidate(
            stem_of(name),
            moment_of_file(name),
            partial(_made, folder(place=place, name=name, step=0, known={name: files[name], **config}, single=True)),
        )
        for name in timed
    ]


def _arranged(place: Address, candidates: list[Candidate], weights: list[str], timed: list[str]) -> Series:
    return arrange(candidates, str(place), [name for name in weights if name not in timed])


def _made(checkpoint: StoreCheckpoint, step: int, epoch: int | None) -> StoreCheckpoint:
    checkpoint.step, checkpoint.epoch = step, epoch
    return checkpoint


def _on_web(place: Address, cache: DiskCache) -> Series:
    if not (is_weights_name(place.name) or place.name.endswith(_INDEX)):
        kinds = f"a file of weights ({', '.join('*' + ending for ending in ENDINGS)}) or an index (*{_INDEX})"
        raise CheckpointError(f"{place} is neither {kinds}, and a web server lists nothing: name one of them")
    web = Web(place)
    found = web.find(place)
    if found is None:
        raise CheckpointError(f"{place} does not exist", file=place.name)
    known: dict[str, Listed] = {place.name: found, **_config_beside(web, place)}
    single = not place.name.endswith(_INDEX)
    name = place.name if single else place.parent.name
    checkpoint = StoreCheckpoint(web, place.parent, cache, name, 0, known=known, single=single)
    if not single:
        known |= _shards(web, place, checkpoint)
    return _one(place, checkpoint)


def _config_beside(store: Bucket | Web, place: Address) -> dict[str, Listed]:
    """The config of a file, if there is one and it may be read: some stores answer "forbidden" for "not there"."""
    with suppress(CheckpointError):
        if config := store.find(place.parent / _CONFIG):
            return {_CONFIG: config}
    return {}


def _shards(web: Web, index: Address, checkpoint: StoreCheckpoint) -> dict[str, Listed]:
    """The files that an index names. The first that is not there ends the search: each takes a request."""
    places = parsed_json(checkpoint.read_small(index.name), str(index)).get("weight_map")
    named = {file for file in places.values() if isinstance(file, str)} if isinstance(places, dict) else set[str]()
    if len(named) > limits.WEB_FILES:
        raise CheckpointError(f"{index} names more than {limits.WEB_FILES:,} files", file=index.name)
    there: dict[str, Listed] = {}
    until = time.monotonic() + limits.STORE_SECONDS + len(named)
    for file in sorted(name for name in named if is_plain_name(name) and is_weights_name(name)):
        if (found := web.find(index.parent / file)) is None:
            raise CheckpointError(f"{file} is missing in {index.parent}, and the index names it", file=file)
        if time.monotonic() > until:
            raise CheckpointError(
                f"{index} names {len(named):,} files, and finding them takes too long", file=index.name
            )
        there[file] = found
    return there


def _one(place: Address, checkpoint: StoreCheckpoint) -> Series:
    """One checkpoint; without a moment in its name or beside its weights it stands at step 0."""
    name = checkpoint.name
    moment, notes = (moment_of_file(name) if checkpoint.single else moment_in(name)), tuple[str, ...]()
    if not moment and _STATE in checkpoint.files:
        with suppress(CheckpointError):  # what is no JSON tells nothing
            moment = moments.moment_of(parsed_json(checkpoint.read_small(_STATE), _STATE))
    if not moment:
        moment, notes = Moment(0), (f"the step of {name} is not known: it stands at 0",)
    found = arrange([Candidate(stem_of(name), moment, partial(_made, checkpoint))], str(place))
    return Series(found.source, found.places, found.axis, (*found.notes, *notes, *_unnoticed(checkpoint.files)))


def _unnoticed(files: Mapping[str, Listed]) -> tuple[str, ...]:
    """A note where another file of the same size would be taken for the one that was measured."""
    if not (names := [name for name, listed in files.items() if not listed.can_be_known_again]):
        return ()
    why = "the server tells neither an entity tag (ETag) nor a date (Last-Modified)"
    return (f"changes that keep the size of {some(names)} cannot be noticed: {why}",)
