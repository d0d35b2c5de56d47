"""Configs, tokenizers and token files that are made to hurt: one sentence each, an end, and never a traceback."""

import io
import json
import socket

import numpy as np
import pytest
import torch
from checkpoint_series import WORDS, make_series, scan
from patience import not_for_ever

from joma.cli.main import main
from joma.host import limits
from joma.scan import CheckpointError
from joma.scan.model import loading
from joma.scan.model.loading import loaded_model, tokenized
from joma.scan.model.text import token_ids


@pytest.fixture
def checkpoint(neox, tmp_path):
    return make_series(neox, tmp_path / "series", (1,)) / "step1"


@pytest.fixture
def tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(64) % WORDS)
    return tmp_path / "tokens.npy"


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def said(folder, text, out, capsys):
    with not_for_ever():
        main(["scan", str(folder), "--measures", "entropy", "--text", str(text), "--out", str(out)])
    shown = capsys.readouterr()
    printed = shown.out + shown.err
    assert "Traceback" not in printed
    assert "a fault of joma" not in printed
    return printed


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"num_hidden_layers": 10**7}, "num_hidden_layers = 10000000, and more than 2,000 is not believed"),
    ({"num_hidden_layers": 1e300}, "not believed"),
    ({"vision_config": {"depths": [2, 10**9]}}, "depths = [2, 1000000000]"),
    ({"backbone": "someone/model"}, "takes a part from another model, backbone = 'someone/model'"),
    ({"dtype": "nothing"}, "no attribute 'nothing'"),
    ({"dtype": "load"}, "cannot be loaded by transformers"),
    ({"max_position_embeddings": "sixteen"}, "max_position_embeddings"),
    ({"max_position_embeddings": -3}, "must be at least 1"),
    ({"hidden_size": 10**9}, "describes a model of more than 100,000,000 numbers"),
    ({"intermediate_size": 10**8}, "its config describes a model of more than 100,000,000 numbers"),
    ({"x": json.loads("[" * 500 + "]" * 500)}, "more than 100 deep"),
    ({"x": json.loads("[" * 25 + "]" * 25)}, "nested more than 20 deep"),
])  # fmt: skip
def test_configs_that_describe_what_nobody_could_build(checkpoint, tokens, tmp_path, capsys, changes, sentence):
    assert sentence in said(configured(checkpoint, **changes), tokens, tmp_path / "out", capsys)


def test_a_model_of_too_many_parts_is_given_up_while_it_is_built(checkpoint, monkeypatch):
    monkeypatch.setattr(limits, "MODULES", 20)
    with pytest.raises(CheckpointError, match="more than 20 parts"):
        loaded_model(checkpoint, torch.device("cpu"))
    torch.nn.Sequential(*(torch.nn.Identity() for _ in range(30)))  # what others build is not counted


def test_numbers_are_counted_over_all_parts_and_only_while_a_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MODEL_NUMBERS", 100)
    (tmp_path / "a.safetensors").write_bytes(bytes(10))  # 80 numbers of 4 bits, fewer than anybody may have
    (tmp_path / "notes.md").write_bytes(bytes(10**4))

    def built(*widths):
        with loading._as_large_as_its_files(tmp_path):
            for width in widths:
                torch.nn.Linear(width, 4)

    built(10, 13)  # 40 + 4 and 52 + 4: a hundred
    with pytest.raises(CheckpointError) as caught:
        built(10, 14)
    what = "a model of more than 100 numbers, and its files have 10 bytes"
    assert str(caught.value) == f"its config describes {what}"
    (tmp_path / "b.bin").write_bytes(bytes(3))  # 8 * (10 + 3) = 104
    built(10, 14)
    with pytest.raises(CheckpointError, match="more than 104 numbers, and its files have 13 bytes"):
        built(10, 15)
    torch.nn.Linear(100, 4)  # what others build is not counted


def test_nothing_that_transformers_says_runs_through_the_lines_of_a_scan(tmp_path):
    logging = pytest.importorskip("transformers").utils.logging
    before = logging.get_verbosity()
    (tmp_path / "adapter_config.json").write_text("{}")
    try:
        logging.set_verbosity_info()
        with pytest.raises(CheckpointError, match="joma runs no model with an adapter"):
            loaded_model(tmp_path, torch.device("cpu"))
        assert logging.get_verbosity() == logging.ERROR
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before)


BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


def with_tokenizer(folder, **changes):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"pre_tokenizer": BACKTRACKS}, "cannot read the text: PanicException"),
    ({"pre_tokenizer": {**BACKTRACKS, "pattern": {"Regex": "((((("}}}, "cannot be loaded by transformers"),
    ({"model": {"type": "WordLevel", "vocab": {"q": 0}, "unk_token": "no"}}, "cannot read the text: Exception"),
    ({"model": {"type": "WordLevel", "vocab": {"q": 2**40}, "unk_token": "q"}}, "cannot be loaded"),
    ({"model": None}, "cannot be loaded"),
])  # fmt: skip
def test_tokenizers_that_panic(checkpoint, changes, sentence):
    with pytest.raises(CheckpointError) as caught:
        tokenized(with_tokenizer(checkpoint, **changes), "a" * 5000 + "!", "step1")
    assert str(caught.value).startswith(f"the tokenizer of step1 {sentence}")
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_end_is_given_up(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(limits, "TOKENIZER_SECONDS", 0.5)
    slow = {**BACKTRACKS, "pattern": {"Regex": "(?:a{1,40}){1,3}b"}}
    (tmp_path / "text.txt").write_text("a" * 20_000)
    printed = said(with_tokenizer(checkpoint, pre_tokenizer=slow), tmp_path / "text.txt", tmp_path / "out", capsys)
    assert "the tokenizer of step1 took more than 1 s of processor time for the text and was given up" in printed


def npy(shape, kind="<i8", data=b""):
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def zipped():
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(100))
    return stream.getvalue()


@pytest.mark.parametrize("content", [
    npy((10**15,)),
    npy((10**10,)),
    npy((2**70,)),
    npy((-5,), data=bytes(80)),
    npy((1,) * 10_000),
    npy((5,), "|O", b"cos\nsystem\n"),
    npy((5,), "<M8[ns]", bytes(40)),
    npy((2, 50), data=bytes(800)),
    zipped(),
    b"",
    b"\x93NUMPY",
    bytes(1000),
])  # fmt: skip
def test_files_of_tokens_that_are_none(checkpoint, tmp_path, capsys, content):
    (tmp_path / "t.npy").write_bytes(content)
    printed = said(checkpoint, tmp_path / "t.npy", tmp_path / "out", capsys)
    assert f"joma: text {tmp_path / 't.npy'} " in printed
    assert printed.count("\n") == 2  # what is scanned, and the sentence


@pytest.mark.long
def test_the_tokenizers_process_asks_no_server_for_what_a_config_names(checkpoint, monkeypatch):
    config = {"model_type": "maskformer", "backbone": "someone/model", "use_timm_backbone": False}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "tokenizer.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(CheckpointError, match="cannot be loaded by transformers"):
            token_ids(checkpoint, "some text", "it")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_code_that_a_config_names_is_not_asked_for(checkpoint, monkeypatch, key):
    """transformers would fetch it from the hub. What it is given must not name it any more, whatever wins inside."""
    from transformers import AutoModel

    given, real = [], AutoModel.from_pretrained

    def spied(*places, config, **options):
        given.extend((config._attn_implementation, options["attn_implementation"]))
        return real(*places, config=config, **options)

    monkeypatch.setattr(AutoModel, "from_pretrained", spied)
    model = loaded_model(configured(checkpoint, **{key: "someone/attention"}), torch.device("cpu"))
    assert given == ["eager", "eager"]
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("how", ["load_in_4bit", "load_in_8bit"])
def test_a_config_that_lies_about_bitsandbytes_costs_the_measures_that_run_the_model(how, checkpoint, tokens, tmp_path):
    """The weights are plain, and bitsandbytes finds that out as the model runs: an assertion, or an attribute."""
    pytest.importorskip("bitsandbytes")
    configured(checkpoint, quantization_config={"quant_method": "bitsandbytes", how: True})
    options = ("--measures", "stable_rank,entropy", "--text", tokens)
    status, found = scan(checkpoint, *options, out=tmp_path / "out")
    assert status == 3
    assert "stable_rank/mlp" in found["curves"]
    (fault,) = found["left_out"]
    assert fault["measure"] == "entropy"
    assert "its config.json may not describe its weights" in fault["what"]


def test_what_breaks_in_joma_is_a_fault_of_joma():
    from joma.scan.model.running import strangers_break
    from joma.scan.names.architecture import located

    with pytest.raises(TypeError), strangers_break():
        located([None])
    with pytest.raises(MemoryError), strangers_break():
        raise MemoryError
    with pytest.raises(CheckpointError, match="the model breaks as it runs: KeyError"), strangers_break():
        exec("{}['x']", {"__name__": "somebody"})
