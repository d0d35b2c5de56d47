"""LoRA adapters of peft: alone, and merged with their base."""

import json
import warnings

import numpy as np
import pytest
import torch
from format_files import notes_of, random, refusal, tensors_of
from patience import not_for_ever

from joma.scan.errors import CheckpointError
from joma.scan.formats.adapter import factors_of
from joma.scan.formats.opening import ALONE
from joma.scan.sources.folder import LocalFolder


def llama(**more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=32,
        tie_word_embeddings=False,
        **more,
    )
    return LlamaForCausalLM(config)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=8))


def adapted(folder, model, base="nobody/nothing", **options):
    """A trained adapter of the model, saved by peft; the model with it merged, and the factors."""
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, value in wrapped.named_parameters():
                if value.requires_grad:
                    scale = 1.0 + value.abs() if "magnitude" in name else torch.ones_like(value)
                    value.add_(0.3 * scale * torch.rand(value.shape, generator=generator))
        wrapped.save_pretrained(folder)
        settings = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": str(base)}))
        merged = wrapped.merge_and_unload()
    return {name: value.clone() for name, value in merged.state_dict().items()}


CASES = {
    "plain": (llama, {"r": 4, "lora_alpha": 8, "target_modules": ["up_proj", "q_proj"]}),
    "rslora": (llama, {"r": 4, "lora_alpha": 8, "target_modules": ["up_proj"], "use_rslora": True}),
    "patterns": (
        llama,
        {
            "r": 4,
            "target_modules": ["up_proj", "q_proj"],
            "rank_pattern": {"q_proj": 2},
            "alpha_pattern": {"q_proj": 32},
        },
    ),
    "embedding": (llama, {"r": 3, "target_modules": ["embed_tokens", "down_proj"]}),
    "whole": (llama, {"r": 3, "target_modules": ["up_proj"], "modules_to_save": ["lm_head"]}),
    "conv1d": (gpt2, {"r": 4, "lora_alpha": 8, "target_modules": ["c_fc", "c_attn"], "fan_in_fan_out": True}),
    "dora": (llama, {"r": 4, "target_modules": ["up_proj"], "use_dora": True}),
    "dora conv1d": (gpt2, {"r": 4, "target_modules": ["c_fc"], "use_dora": True, "fan_in_fan_out": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_alone_and_with_its_base(tmp_path, case):
    make, options = CASES[case]
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path / "base")
    after = adapted(tmp_path / "adapter", model, base="nobody/nothing", **options)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    place = LocalFolder(tmp_path / "adapter", 0)
    alone = tensors_of(place)
    assert {name for name in alone if "bias" not in name} == changed
    for name, core in alone.items() if "dora" not in case else ():
        if name == "lm_head.weight":  # trained whole
            assert torch.equal(core, after[name])
            continue
        delta = (after[name] - before[name]).double().numpy()
        exact = np.linalg.svd(delta, compute_uv=False)[: min(core.shape)]
        found = np.linalg.svd(core.double().numpy(), compute_uv=False)
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
        assert max(core.shape) <= 4  # the product was not formed
    assert "made from the factors of a LoRA adapter" in notes_of(place)[-1]
    merged = tensors_of(LocalFolder(tmp_path / "adapter", 0, base=tmp_path / "base"))
    for name in changed:
        stored = name if name in merged else name.removeprefix("transformer.")
        np.testing.assert_allclose(merged[stored].numpy(), after[name].numpy(), rtol=1e-5, atol=2e-6)
    same = next(name for name in merged if "norm" in name or "ln_" in name)
    assert torch.equal(merged[same], before[same] if same in before else before[f"transformer.{same}"])


def test_the_core_is_the_one_that_moves_as_smoothly_as_its_factors(tmp_path):
    """Triangles with a positive diagonal: those of Cholesky, of s B and of A."""
    from safetensors.torch import load_file

    adapted(tmp_path, llama(), **CASES["plain"][1])
    factors = {
        name: value.double().numpy() for name, value in load_file(tmp_path / "adapter_model.safetensors").items()
    }
    for name, core in tensors_of(LocalFolder(tmp_path, 0)).items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = factors[f"{module}.lora_A.weight"], 8 / 4 * factors[f"{module}.lora_B.weight"]
        expected = np.linalg.cholesky(b.T @ b).T @ np.linalg.cholesky(a @ a.T)
        np.testing.assert_allclose(core.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_base_that_an_adapter_names_is_used_if_it_is_here(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "base")
    after = adapted(tmp_path / "adapter", model, base=tmp_path / "base", **CASES["plain"][1])
    name = "model.layers.1.mlp.up_proj.weight"
    place = LocalFolder(tmp_path / "adapter", 0)
    found = tensors_of(place)
    np.testing.assert_allclose(found[name].numpy(), after[name].numpy(), rtol=1e-5, atol=1e-6)
    assert "lm_head.weight" in found
    assert notes_of(place) == ("4 weights of the base came out with the adapter merged into them",)
    assert max(tensors_of(LocalFolder(tmp_path / "adapter", 0, base=ALONE))[name].shape) == 4


def test_a_folder_that_happens_to_have_the_name_of_the_base_is_not_taken_for_it(tmp_path, monkeypatch):
    (tmp_path / "nobody" / "nothing").mkdir(parents=True)
    adapted(tmp_path / "adapter", llama(), **CASES["plain"][1])
    monkeypatch.chdir(tmp_path)
    assert "lm_head.weight" not in tensors_of(LocalFolder(tmp_path / "adapter", 0))


def test_the_command_takes_a_base(tmp_path):
    from checkpoint_series import scan

    model = llama()
    model.save_pretrained(tmp_path / "base")
    after = adapted(tmp_path / "run" / "checkpoint-10", model, **CASES["plain"][1])
    arguments = ("--groups", "attention_q", "--base")
    found = scan(tmp_path / "run", *arguments, tmp_path / "base", out=tmp_path / "out")[1]["curves"]
    squares = [after[f"model.layers.{layer}.self_attn.q_proj.weight"].double().square() for layer in range(2)]
    norms = [after[f"model.layers.{layer}.self_attn.q_proj.weight"].double() for layer in range(2)]
    wanted = [float(s.sum() / torch.linalg.matrix_norm(w, 2) ** 2) for s, w in zip(squares, norms, strict=True)]
    np.testing.assert_allclose(np.ravel(found["stable_rank/attention_q"]["values"]), wanted, rtol=2e-3)
    alone = scan(tmp_path / "run", *arguments, "none", out=tmp_path / "out")[1]["curves"]
    assert np.all(np.ravel(alone["stable_rank/attention_q"]["values"]) < 4.01)  # the rank of the adapter


def test_a_series_of_adapters_on_a_base(tmp_path):
    from joma.host.errors import BadInput
    from joma.scan import open_series
    from joma.scan.sources.places import on_base

    model = llama()
    model.save_pretrained(tmp_path / "base")
    after = adapted(tmp_path / "run" / "checkpoint-10", model, **CASES["plain"][1])
    series = open_series(tmp_path / "run", downloads=tmp_path)
    merged = on_base(series, tmp_path / "base")
    name = "model.layers.0.self_attn.q_proj.weight"
    found = tensors_of(merged.places[0])[name]
    np.testing.assert_allclose(found.numpy(), after[name].numpy(), rtol=1e-5, atol=1e-6)
    assert tensors_of(on_base(series, "none").places[0])[name].shape == (4, 4)
    assert len({place.identity() for place in (series.places[0], merged.places[0])}) == 2
    with pytest.raises(BadInput, match="base must be the folder of a model"):
        on_base(series, tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for nowhere in (tmp_path / "loop", "~nobody-has-this-name/model"):
        with pytest.raises(BadInput, match="base must be the folder of a model"):
            on_base(series, nowhere)
    torch.save({"w": random(2, 2)}, tmp_path / "step1.pt")
    with pytest.raises(BadInput, match="is none"):
        on_base(open_series(tmp_path / "step1.pt", downloads=tmp_path), "none")


def test_adapters_that_cannot_be_read(tmp_path):
    adapted(tmp_path, llama(), **CASES["plain"][1])
    config = tmp_path / "adapter_config.json"
    settings = json.loads(config.read_text())
    for change, sentence in (
        ({"peft_type": "IA3"}, "kind 'IA3'; only LORA is read"),
        ({"lora_alpha": "many"}, "no number lora_alpha"),
    ):
        config.write_text(json.dumps({**settings, **change}))
        assert sentence in refusal(LocalFolder(tmp_path, 0).open)
    llama().save_pretrained(tmp_path / "base")
    config.write_text(json.dumps({**settings, "init_lora_weights": "pissa_niter_4"}))
    assert "changes the base first" in refusal(LocalFolder(tmp_path, 0, base=tmp_path / "base").open)
    config.write_text(json.dumps(settings))
    gpt2().save_pretrained(tmp_path / "other")
    assert "it belongs to another base" in refusal(LocalFolder(tmp_path, 0, base=tmp_path / "other").open)
    assert "is an adapter itself" in refusal(LocalFolder(tmp_path, 0, base=tmp_path).open)


def alpha_of(module, **settings):
    names = [f"base_model.model.{module}.lora_A.weight", f"base_model.model.{module}.lora_B.weight"]
    (found,) = factors_of(names, {"lora_alpha": 1, **settings})
    return found.alpha


@pytest.mark.parametrize(("pattern", "fits"), [
    (r"model\.layers\.[0-9]+\.mlp\.up_proj", True),
    (r".*up_proj", True),
    (r"layers.\d+.mlp.up_proj", True),
    (r"layers\.(?:0|1)\.mlp\.up_proj", True),
    (r"mlp\.[du].*_proj", True),
    (r"layers\.[1-9]+\.mlp\.up_proj", False),
    (r"up_pro", False),
])  # fmt: skip
def test_patterns_are_read_as_peft_reads_them(pattern, fits):
    from peft.utils.other import get_pattern_key

    module = "model.layers.0.mlp.up_proj"
    assert (get_pattern_key([pattern], module) == pattern and get_pattern_key([pattern], module) != module) == fits
    assert alpha_of(module, alpha_pattern={pattern: 2}) == (2 if fits else 1)


@pytest.mark.parametrize(("module", "pattern", "sentence"), [
    ("a", "(a+)+b", "or a group, which could take for ever"),
    ("a", r"\[(.|a)*(b|a)*\]", "or a group, which could take for ever"),
    ("a", ".*.*.*.*x", "repeats more than 2 letters"),
    ("a", "a{1,9}b{1,9}c{1,9}", "repeats more than 2 letters"),
    ("a" * 38 + "b", "(.|a)" * 38, "a pattern of more than 2 groups, which could take for ever"),
    ("a", "[a", "is not a regular expression"),
    ("a", "a" * 201, "of more than 200 letters"),
    ("a" * 161, "b.*c", "a module has a name of 161 letters"),
])  # fmt: skip
def test_patterns_that_are_not_tried_are_told(module, pattern, sentence):
    """Passed over in silence, they would leave the adapter with another scale."""
    assert alpha_of(module) == 1
    with pytest.raises(CheckpointError, match=sentence):
        alpha_of(module, alpha_pattern={pattern: 2})


def test_the_slowest_patterns_that_are_tried_take_no_time():
    with not_for_ever():
        assert alpha_of("a" * 38 + "b", alpha_pattern={"(x|a)" + "a" * 37 + "(b|c)": 2}) == 2
        assert alpha_of("a." * 79 + "a", alpha_pattern={"(.|a).*(a|.).*x": 2}) == 1
