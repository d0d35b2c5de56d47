"""What the names of files say, without a look at the files: weights, the moment of training, one model or several."""

from collections.abc import Collection
from pathlib import PurePosixPath

from joma.scan.formats.checkpoint import ENDINGS, NO_WEIGHTS, parts_of_one
from joma.scan.sources.series import Moment, moment_in

_TIMM = ".pth.tar"


def is_weights_name(name: str) -> bool:
    """Whether a file is one of weights by its name, not of an optimizer.

    >>> [is_weights_name(name) for name in ("model.safetensors", "optimizer.pt", "config.json")]
    [True, False, False]
    """
    return name.endswith(ENDINGS) and not NO_WEIGHTS.fullmatch(name)


def stem_of(name: str) -> str:
    """The name of a file without its ending.

    >>> stem_of("step10.safetensors"), stem_of("checkpoint-3.pth.tar")
    ('step10', 'checkpoint-3')
    """
    return name.removesuffix(_TIMM).removesuffix(PurePosixPath(name).suffix)


def moment_of_file(name: str) -> Moment:
    """The moment that a name speaks of. timm, and the scripts that it follows, number `.pth.tar` files by epoch.

    >>> moment_of_file("step10.safetensors").step, moment_of_file("checkpoint-3.pth.tar").epoch
    (10, 3)
    """
    found = moment_in(stem_of(name))
    by_epoch = name.endswith(_TIMM) and found.epoch is None and name.startswith("checkpoint")
    return Moment(None, found.step) if by_epoch else found


def is_one_model(names: Collection[str]) -> bool:
    """Whether the files of a folder are one model: as transformers names them, or one file beside its config.

    >>> is_one_model(["config.json", "step10.safetensors"]), is_one_model(["step10.safetensors", "step20.safetensors"])
    (True, False)
    """
    if {"model.safetensors", "pytorch_model.bin"} & {*names} or any(name.endswith(".index.json") for name in names):
        return True
    if parts_of_one(names):  # of DeepSpeed, of torch's distributed checkpoints
        return True
    return "config.json" in names and sum(bool(moment_of_file(name)) for name in filter(is_weights_name, names)) < 2
