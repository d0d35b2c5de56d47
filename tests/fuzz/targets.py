"""What is fuzzed: for each kind of input the honest seeds, how they are spoiled, who reads them, what may be raised."""

from __future__ import annotations

from format_targets import FORMATS
from listing_targets import LISTINGS
from model_targets import MODELS
from optimizer_targets import OPTIMIZERS
from record_targets import RECORDS
from target import Target
from tensor_targets import TENSORS
from text_targets import TEXTS

from joma.host.errors import JomaError
from joma.host.sealed import DamagedError

TARGETS: dict[str, Target] = TENSORS | RECORDS | MODELS | OPTIMIZERS | TEXTS | FORMATS | LISTINGS
assert all(issubclass(kind, JomaError | DamagedError) for target in TARGETS.values() for kind in target.may_raise)
