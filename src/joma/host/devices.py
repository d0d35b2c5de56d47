"""Which devices there are, and one sentence for those that are not. Loads no torch before it is asked."""

import os
import re

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def must_be_a_device(name: str) -> None:
    """Refuse what is no name of a device, whether or not this machine has it.

    >>> must_be_a_device("tpu")
    Traceback (most recent call last):
        ...
    ValueError: device must be cpu, cuda or cuda:NUMBER, got 'tpu'
    """
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise ValueError(f"device must be cpu, cuda or cuda:NUMBER, got {name!r}")


def lacking(device: str) -> str | None:
    """What is missing for `device` to be used here, as a sentence; None if nothing is."""
    must_be_a_device(device)
    if device == "cpu":
        return None
    import torch

    wanted, seen = int(device.partition(":")[2] or 0), torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"device {device} needs a CUDA GPU, and torch sees {seen or 'none'} here" if wanted >= seen else None


def visible_gpus() -> list[str]:
    """The GPUs that torch sees here, each as CUDA_VISIBLE_DEVICES names it: a process can be given one of them."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return named[:count] if named else [str(number) for number in range(count)]
