"""What is fuzzed of a model's folder: its config, its tokenizer, its index, and the hub it lies on."""

from __future__ import annotations

import json
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from mutations import spoiled_json
from safetensors.torch import save_file
from target import Target

from joma.host import hub as hub_client
from joma.scan.errors import CheckpointError

# models


@cache
def _model_folder(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoXConfig, GPTNeoXModel, PreTrainedTokenizerFast

    place = folder / "model"
    shape: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 16}
    GPTNeoXModel(GPTNeoXConfig(**shape, num_hidden_layers=1, max_position_embeddings=8)).save_pretrained(place)
    words = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, " ": 3}, [("a", "b")]))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place)
    return place


def _config_seeds(folder: Path) -> list[bytes]:
    neox = json.loads((_model_folder(folder) / "config.json").read_text())
    gpt2 = {"model_type": "gpt2", "n_positions": 8, "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16}
    llama = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    nested = {"model_type": "clip", "text_config": {"num_hidden_layers": 1, "hidden_size": 8}, "vision_config": {}}
    return [json.dumps(one).encode() for one in (neox, neox, gpt2, llama, nested)]


def _read_config(content: bytes, folder: Path) -> None:
    from joma.probes.lengths import default_seq_len
    from joma.scan.model.loading import loaded_config, loaded_model
    from joma.scan.sources.folder import LocalFolder

    place = _model_folder(folder)
    (place / "config.json").write_bytes(content)
    LocalFolder(place, 0).config()
    default_seq_len(loaded_config(place, "it"))
    loaded_model(place, torch.device("cpu"))


def _tokenizer_seeds(folder: Path) -> list[bytes]:
    first = json.loads((_model_folder(folder) / "tokenizer.json").read_text())
    word = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}
    split = {"type": "Split", "pattern": {"Regex": r"\s+|a+b"}, "behavior": "Removed", "invert": False}
    replaced = {"type": "Replace", "pattern": {"Regex": "a|b+"}, "content": "b"}
    others = [{**first, "model": word, "pre_tokenizer": split}, {**first, "normalizer": replaced}]
    return [json.dumps(one).encode() for one in (first, *others)]


def _read_tokenizer(content: bytes, folder: Path) -> None:
    from joma.scan.model.loading import tokenized

    place = _model_folder(folder)
    (place / "tokenizer.json").write_bytes(content)
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork beside threads; this child uses none of theirs, and is given up if it hangs.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        child = os.fork()  # as joma does, but without importing everything anew
    if child:
        os.close(writes)
        with os.fdopen(reads) as stream:
            told = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status != 3, "an error that is not documented"
        if status:
            raise CheckpointError(told or "it broke down")
        return
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic writes pages
        tokenized(place, "ab a b" * 50, "it")
        status = 0
    except CheckpointError as error:
        os.write(writes, str(error).encode()[:1000])
    except BaseException:
        status = 3
    finally:
        os._exit(status)


def _index_seeds(_: Path) -> list[bytes]:
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return [json.dumps({"metadata": {"total_size": 3}, "weight_map": places}).encode()]


def _read_index(content: bytes, folder: Path) -> None:
    from joma.scan.sources.places import find_places

    place = folder / "sharded"
    if not place.exists():
        place.mkdir()
        for number, name in enumerate("ab", 1):
            save_file({name: torch.eye(2)}, place / f"model-0000{number}-of-00002.safetensors")
    (place / "model.safetensors.index.json").write_bytes(content)
    for one in find_places(place).places:
        with one.open() as checkpoint:
            for name in checkpoint.names():
                checkpoint.stored(name), checkpoint.read(name)


# the hub


def _hub_seeds(_: Path) -> list[bytes]:
    branches = [{"name": name, "targetCommit": "a" * 40} for name in ("main", "step10", "step20")]
    file = {
        "type": "file",
        "oid": "b" * 40,
        "size": 12,
        "path": "model.safetensors",
        "lfs": {"oid": "c" * 64, "size": 12},
    }
    config = {"type": "file", "oid": "b" * 40, "size": 2, "path": "config.json"}
    pages = [{"branches": branches, "tags": [], "converts": []}, [file, config, {"type": "directory", "path": "x"}]]
    return [json.dumps(page).encode() for page in (pages[0], pages[1])]


class _Session:
    """The hub's client, with one strange answer: to the question for revisions if it is a mapping, else for files."""

    def __init__(self, content: bytes) -> None:
        refs, tree = _hub_seeds(Path())
        self.refs, self.tree = (content, tree) if content[:1] == b"{" else (refs, content)

    def __call__(self, method: str, url: str, **_: Any) -> Any:
        from contextlib import nullcontext
        from importlib import import_module

        library = import_module(type(hub_client.client().get_session()).__module__.partition(".")[0])
        content = self.refs if url.endswith("/refs") else self.tree
        return nullcontext(library.Response(200, content=content, request=library.Request(method, url)))


def _read_hub(content: bytes, folder: Path) -> None:
    from joma.scan import open_series

    client, pause = hub_client.client(), hub_client.PAUSE
    kept = client.http_stream_backoff
    client.http_stream_backoff, hub_client.PAUSE = _Session(content), 0.0
    try:
        for one in open_series("someone/model", downloads=folder).places:
            one.config(), one.weights(), one.identity()
            with one.open() as checkpoint:
                checkpoint.names()
    finally:
        client.http_stream_backoff, hub_client.PAUSE = kept, pause


MODELS: dict[str, Target] = {
    "config": Target(_config_seeds, spoiled_json, _read_config, (CheckpointError,)),
    "tokenizer": Target(_tokenizer_seeds, spoiled_json, _read_tokenizer, (CheckpointError,)),
    "index": Target(_index_seeds, spoiled_json, _read_index, (CheckpointError,)),
    "hub": Target(_hub_seeds, spoiled_json, _read_hub, (CheckpointError,)),
}
