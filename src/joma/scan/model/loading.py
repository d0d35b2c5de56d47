"""What transformers makes of a checkpoint's folder, held to what the folder can be believed.

`joma.scan.model.loading FOLDER NAME SECONDS` is a process that `model.text` starts: a stranger's tokenizer at work. It
ends after that much time of the processor.

Its config and its tokenizer are a stranger's. Code that comes with them is never run. A model is refused while it is
being built, once it has more parts or more numbers than its files could fill: a config of a few bytes can describe one
that takes all memory and all day.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from time import process_time
from typing import Any

import torch

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]
from torch.nn.modules import module as torch_module

from joma.host import limits
from joma.host.errors import BadInput
from joma.host.extras import how_to_install
from joma.host.words import counted
from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import CONFIG as ADAPTER
from joma.scan.formats.checkpoint import ends_in
from joma.scan.formats.tensor_file import parsed_json, small_file

_HOW_MANY = re.compile(r"(.*_)?(layers?|depths?|experts?|blocks?)")


def loaded_config(folder: Path, what: str) -> Any:
    """The config in a folder. what: how messages call it."""
    _must_be_believable(folder / "config.json")
    return pretrained("AutoConfig", folder, what)


def loaded_model(folder: Path, device: torch.device, *, with_head: bool = False) -> Any:
    """The model in a folder, on the CPU, in the precision that `device` is given; refused if weights are missing."""
    transformers_library().utils.logging.set_verbosity_error()  # the head is not loaded on purpose
    if (folder / ADAPTER).is_file():  # where peft is installed, transformers would change the weights by it
        how = "joma runs no model with an adapter: merge the two, or move the adapter away"
        raise CheckpointError(f"{folder} has an {ADAPTER} beside the model, and {how}", file=ADAPTER)
    config = loaded_config(folder, f"{folder}")
    # A config may name attention code on the hub, and would win over the option; the probe brings its own anyway.
    # Falcon keeps its own, and with ALiBi the one on sdpa, which transformers chooses unasked, is not the eager one.
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    config._attn_implementation = attention
    dtype = "auto" if device.type == "cuda" and not with_head else torch.float32
    options = {"config": config, "dtype": dtype, "output_loading_info": True, "attn_implementation": attention}
    with _as_large_as_its_files(folder):
        model, info = pretrained("AutoModelForCausalLM" if with_head else "AutoModel", folder, f"{folder}", **options)
    # transformers makes up what is missing, at random. A pooler stands after all attention, and is often not there.
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing:
        more = f" and {counted(len(missing) - 1, 'more tensor')}" if missing[1:] else ""
        raise CheckpointError(f"its weights lack {missing[0]}{more}", file=missing[0])
    return model.eval()


def pretrained(kind: str, folder: Path, what: str, **options: Any) -> Any:
    """What transformers makes of a folder. It never runs code that comes with it, and never asks whether it may."""
    loader = getattr(transformers_library(), kind)
    try:
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except CheckpointError:
        raise
    except BaseException as error:  # what breaks depends on what the folder holds
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        message = " ".join(str(error).split())
        if "trust_remote_code" in message:
            why = "needs Python code that comes with the checkpoint (auto_map), and joma never runs such code"
        elif "Weights only load failed" in message:  # torch goes on to say how to run them
            why = "has weights in a pickle that holds more than tensors, and joma never runs such code"
        else:
            why = f"cannot be loaded by transformers: {message[:160]}"
        raise CheckpointError(f"{what} {why}") from None


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust broke: what it raises then is no Exception, and cannot be imported by its name."""
    return type(error).__name__ == "PanicException"


def _must_be_believable(path: Path) -> None:
    """Refuse a config that nobody could build, before transformers makes lists as long as it says."""
    config = parsed_json(small_file(path), str(path))
    if limits.depth_of(config, limits.CONFIG_DEPTH) > limits.CONFIG_DEPTH:
        raise CheckpointError(f"{path} is nested more than {limits.CONFIG_DEPTH} deep, and that is not believed")
    for name, value in _entries(config):
        if name == "backbone" and isinstance(value, str):  # transformers would ask the hub for it
            part = f"{path} takes a part from another model, backbone = {value[:40]!a}"
            raise CheckpointError(f"{part}, and joma loads no other model", file=path.name)
        numbers = value if isinstance(value, list) else [value]
        if _HOW_MANY.fullmatch(name) and any(isinstance(n, int | float) and n > limits.LAYERS for n in numbers):
            says = f"{path} says {name} = {json.dumps(value)[:40]}"
            raise CheckpointError(f"{says}, and more than {limits.LAYERS:,} is not believed", file=path.name)


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        yield str(name), value
        if isinstance(value, dict):
            yield from _entries(value)


@contextmanager
def _as_large_as_its_files(folder: Path) -> Iterator[None]:
    """A model that is built inside this block, by this thread, is refused once it is larger than its files allow."""
    files = sum(path.stat().st_size for path in folder.iterdir() if ends_in(path.name) and path.is_file())
    most = max(limits.MODEL_NUMBERS, 8 * files)  # numbers of 4 bits, counted up to four times while they are loaded
    parts, numbers, builder = 0, 0, threading.get_ident()

    def part(*_: Any) -> None:
        nonlocal parts
        parts += threading.get_ident() == builder
        if parts > limits.MODULES:
            raise CheckpointError(f"its config describes a model of more than {limits.MODULES:,} parts")

    def number(_: Any, name: str, value: Any) -> None:
        nonlocal numbers
        numbers += value.numel() if value is not None and threading.get_ident() == builder else 0
        if numbers > most:
            what = f"a model of more than {most:,} numbers, and its files have {files:,} bytes"
            raise CheckpointError(f"its config describes {what}")

    hooks = [
        torch_module.register_module_module_registration_hook(part),
        torch_module.register_module_parameter_registration_hook(number),
        torch_module.register_module_buffer_registration_hook(number),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def transformers_library() -> Any:
    """The library, or one sentence where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise BadInput(f"a model runs by transformers: {how_to_install('hf')}") from None
    transformers.utils.logging.disable_progress_bar()  # it would run through the lines of the scan
    return transformers


def tokenized(folder: Path, text: str, what: str) -> list[int]:
    """The tokens that the tokenizer in a folder makes of a text, in this process, which may not survive it."""
    tokenizer = pretrained("AutoTokenizer", folder, f"the tokenizer of {what}")
    try:
        return [int(number) for number in tokenizer(text)["input_ids"]]
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise CheckpointError(f"the tokenizer of {what} cannot read the text: {why}") from None


def _end_after(seconds: int) -> None:
    """Let this process end after so much more time of the processor; a busy machine costs nobody his text."""
    if resource is not None:
        most = ceil(process_time()) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))


def main() -> None:
    """Write {"ids": [...]} or {"error": a sentence}; nothing, if the tokenizer ends this process."""
    to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    folder, name, seconds = sys.argv[1:]
    _end_after(int(seconds))
    try:
        answer: dict[str, object] = {"ids": tokenized(Path(folder), sys.stdin.buffer.read().decode(), name)}
    except CheckpointError as error:
        answer = {"error": str(error)}
    json.dump(answer, to)
    to.close()


if __name__ == "__main__":
    main()
