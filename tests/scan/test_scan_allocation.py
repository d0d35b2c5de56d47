"""Which parameters made entropy and loss move: against `allocate` called by hand, and finite differences."""

import copy
import csv
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoint_series import change, scan
from later import some_now

from joma.cli.main import main
from joma.host.errors import BadInput
from joma.measure.allocation import allocate
from joma.scan import CheckpointError
from joma.scan.model.allocation import _pair, allocated, entropies_and_loss
from joma.scan.names.parameters import parameter_groups
from joma.training import SeriesConfig, train_series

STEPS, LAYERS, CONTEXT = (0, 2, 4, 8), 2, 16
BY_HAND = {
    "embeddings": ["gpt_neox.embed_in.weight"],
    "layer 1 MLP": [
        f"gpt_neox.layers.1.mlp.dense_{part}.{kind}" for part in ("h_to_4h", "4h_to_h") for kind in ("weight", "bias")
    ],
    "last norm": ["gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias"],
    "output": ["lm_head.weight"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "series"
    shape = {"layers": LAYERS, "width": 32, "heads": 2, "vocabulary": 260, "context": CONTEXT, "batch": 4}
    text = "the cat sat on the mat and the dog sat on the cat " * 40
    train_series(folder, text, SeriesConfig(steps=8, rate=2e-2, **shape), save_at=list(STEPS))
    return folder


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "ids.npy"
    np.save(path, np.random.default_rng(0).integers(0, 260, 50))  # three windows
    return path


@pytest.fixture(scope="module")
def whole(trained, ids, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    status, found = scan(trained, "--measures", "allocation,entropy", "--text", ids, "--csv", out / "a.csv", out=out)
    assert status == 0
    return out, found


def table(found, name):
    curve = found["curves"][name]
    return np.array(curve["values"], dtype=float), curve["columns"]


def in_doubles(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()


def by_weights(model, windows):
    def function(parameters):
        found = torch.func.functional_call(model, parameters, (), {"input_ids": windows, "output_attentions": True})
        entropies = [-(w * w.clamp(min=1e-300).log()).sum(-1).mean() for w in found.attentions]
        loss = torch.nn.functional.cross_entropy(found.logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten())
        return torch.stack([*entropies, loss])

    return function


def test_parts_are_those_of_allocate_called_by_hand(whole, trained, ids):
    models = [in_doubles(trained / f"step{step}") for step in STEPS]
    windows = torch.from_numpy(np.load(ids))[:48].view(3, CONTEXT)
    states = [dict(model.named_parameters()) for model in models]
    # queries and keys of head h are rows 48 h to 48 h + 31 of the fused matrix
    rows = [48 * head + row for head in range(2) for row in range(32)]
    own = [(f"gpt_neox.layers.1.attention.query_key_value.{kind}", (rows,)) for kind in ("weight", "bias")]
    want = allocate(by_weights(models[-1], windows), states, {"layer 1 QK": own, **BY_HAND}, absolute=1e-6)
    entropy, columns = table(whole[1], "allocation/entropy")
    loss, same = table(whole[1], "allocation/loss")
    assert columns == same
    got = np.concatenate([entropy, loss], axis=1)[1:]  # (intervals, measures, columns)
    assert np.isnan(entropy[0]).all()
    np.testing.assert_allclose(got[:, :, columns.index("change")], want.change.numpy(), atol=1e-5)
    assert (got[:, :, 1] <= np.maximum(1e-4, 1.01e-3 * np.abs(got[:, :, 0]))).all()
    assert got[:, 0, columns.index("since")].tolist() == [0, 2, 4]
    for at, group in enumerate(want.groups[:-1]):  # without the rest
        np.testing.assert_allclose(got[:, :, columns.index(group)], want.parts[:, at].numpy(), atol=5e-4)
    assert np.abs(got[:, 1, columns.index("layer 1 QK")]).max() > 0.1
    np.testing.assert_allclose(got[:, :, 3:].sum(-1), got[:, :, 0], atol=2e-3)


def test_the_change_is_that_of_the_entropy_curve(whole):
    entropy = np.array(whole[1]["curves"]["entropy"]["values"]).mean(-1)
    np.testing.assert_allclose(table(whole[1], "allocation/entropy")[0][1:, :, 0], np.diff(entropy, axis=0), atol=1e-5)


def small(kind):
    import transformers as hf

    torch.manual_seed(0)
    text = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": None}  # fmt: skip
    made = {
        "gpt_neox": lambda: hf.GPTNeoXConfig(**text, rotary_pct=1.0),
        "llama": lambda: hf.LlamaConfig(**text, num_key_value_heads=2),
        "gpt2": lambda: hf.GPT2Config(
            vocab_size=20, n_embd=16, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
        ),
        "phi3": lambda: hf.Phi3Config(**text, num_key_value_heads=2),
        "qwen3": lambda: hf.Qwen3Config(**text, num_key_value_heads=2, head_dim=4),
    }
    return hf.AutoModelForCausalLM.from_config(made[kind]()).double().eval()


def moved(model, size):
    later, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return later


def test_the_error_is_that_of_the_worst_part_where_errors_cancel_in_the_sum(monkeypatch):
    parts = torch.tensor([[1.0, 2.0], [-0.5, -1.0]])  # (groups, measures)
    off = torch.tensor([[3e-2, 0.0], [1e-3, 1e-4]])
    found = _pair(("a", "b"), parts, torch.tensor([0.5, 1.5]), off, 6, ())
    assert found.values["allocation/entropy"][0].tolist() == pytest.approx([0.5, 3e-2, 1.0, -0.5])
    assert found.values["allocation/loss"][0].tolist() == pytest.approx([1.5, 0.5, 2.0, -1.0])
    asked = []

    def stopped(*_, **how):
        asked.append(how["each"])
        raise BadInput("enough")

    monkeypatch.setattr("joma.measure.allocation.allocate", stopped)
    with pytest.raises(BadInput, match="enough"):
        allocated(small("gpt_neox"), small("gpt_neox"), torch.arange(16), lambda doing: None)
    assert asked == [True]


def test_batches_count_by_their_windows(monkeypatch):
    """Three windows, two at a time: what the first batch says has two thirds of the weight, its error too."""
    said = [({"parts": 3.0, "change": 6.0, "moved": 0.3}, 4), ({"parts": 9.0, "change": 12.0, "moved": 0.6}, 8)]
    seen = []

    def one(function, states, groups, **how):
        numbers, nodes = said[len(seen)]
        seen.append(len(states))
        values = {name: torch.full((1, 2, 2) if name != "change" else (1, 2), value) for name, value in numbers.items()}
        return SimpleNamespace(**values, nodes=torch.tensor([nodes]), reasons=("r",), groups=("a", "b"))

    monkeypatch.setattr("joma.measure.allocation.allocate", one)
    monkeypatch.setattr("joma.scan.model.allocation._at_once", lambda config, seq_len: 2)
    found = allocated(small("gpt_neox"), small("gpt_neox"), torch.arange(12), lambda doing: None, seq_len=4)
    # parts 2/3 * 3 + 1/3 * 9 = 5 each, change 8, closing error 2; moved 2/3 * 0.3 + 1/3 * 0.6 is less
    assert found.values["allocation/loss"][0].tolist() == pytest.approx([8.0, 2.0, 5.0, 5.0])
    assert found.notes == ("not closed: r",)
    assert "with 12 nodes" in found.line
    said[:] = [({"parts": 3.0, "change": 6.0, "moved": 0.3}, 4), ({"parts": 6.0, "change": 12.0, "moved": 0.6}, 8)]
    seen.clear()
    found = allocated(small("gpt_neox"), small("gpt_neox"), torch.arange(12), lambda doing: None, seq_len=4)
    assert found.values["allocation/loss"][0].tolist() == pytest.approx([8.0, 0.4, 4.0, 4.0])


@pytest.mark.parametrize("kind", some_now(["gpt_neox", "llama", "gpt2", "phi3", "qwen3"], every=2))
def test_small_steps_are_finite_differences_of_single_groups(kind):
    earlier = small(kind)
    with torch.no_grad():
        for parameter in earlier.parameters():
            parameter.mul_(8.0 if parameter.ndim > 1 else 1.0)
    later = moved(earlier, 1e-3)
    tokens = torch.arange(20 if kind == "llama" else 40) * 7 % 20  # windows of 32, or the text where it is shorter
    found = allocated(earlier, later, tokens, lambda doing: None)
    parts = np.concatenate(list(found.values.values()))[:, 2:].T  # (groups, measures)
    groups = parameter_groups(later)
    assert found.columns[2:] == tuple(groups)
    start, end = dict(earlier.named_parameters()), dict(later.named_parameters())
    function = entropies_and_loss(later, tokens[None, :32])
    middle = {name: (start[name] + end[name]) / 2 for name in start}
    for group, part in zip(groups.values(), parts, strict=True):
        ends = [dict(middle), dict(middle)]
        for entry in group:
            name, index = entry if isinstance(entry, tuple) else (entry, ...)
            half = torch.zeros_like(start[name])
            half[index] = (end[name] - start[name])[index] / 2
            ends = [{**ends[0], name: ends[0][name] - half}, {**ends[1], name: ends[1][name] + half}]
        with torch.no_grad():
            want = function(ends[1]) - function(ends[0])
        np.testing.assert_allclose(part, want.numpy(), rtol=2e-3, atol=2e-3 * np.abs(parts).max(0).min())
    for layer in range(2):  # what a layer does after it has attended cannot move its entropy; what lies above neither
        for name in (f"layer {layer} value and output", f"layer {layer} MLP", "last norm", "output", "layer 1 QK"):
            if name in groups and not (name == "layer 1 QK" and layer == 1):
                assert parts[list(groups).index(name), layer] == 0
        assert abs(parts[list(groups).index(f"layer {layer} QK"), layer]) > 1e-6
    assert ("output" in groups) == (kind != "gpt2")


def test_the_vector_of_a_padding_token_counts_where_the_text_holds_it(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=9, pad_token_id=0, max_position_embeddings=32, **sizes))
    for step, each in ((0, model), (10, moved(model, 0.1))):
        each.save_pretrained(tmp_path / "series" / f"step{step}")
    np.save(tmp_path / "ids.npy", np.arange(32) % 2)
    text = ("--text", tmp_path / "ids.npy")
    status, found = scan(tmp_path / "series", "--measures", "allocation", *text, out=tmp_path / "out")
    values, columns = table(found, "allocation/loss")
    assert status == 0
    assert values[1, 0, columns.index("error")] < 1e-3 * abs(values[1, 0, 0]) + 1e-4


def test_what_a_scan_makes_of_it(whole, tmp_path, capsys):
    out, found = whole
    with (out / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    values, columns = table(found, "allocation/entropy")
    mine = [row for row in rows if row["measure"] == "allocation_layer_0_QK" and row["group"] == "entropy"]
    assert [float(row["value"]) for row in mine] == values[1:, :, columns.index("layer 0 QK")].ravel().tolist()
    assert (mine[1]["step"], mine[1]["layer"], mine[1]["head"]) == ("2", "1", "")
    assert main(["report", found["run"], "--out", str(tmp_path)]) == 0
    page = next(tmp_path.glob("*.html")).read_text()
    section = page[page.index('id="measure-allocation"') :].split("</section>")[0]
    assert section.count("<figure") == 2
    assert "QK of this layer" in section
    assert "The parts miss no interval" in section
    words = ["scan", "--compare", found["run"], found["run"], "--out", str(tmp_path), "--no-page"]
    rules = ["--measures", "allocation", "--fail-if", "allocation_error/entropy>1", "--fail-if", "allocation/loss<10"]
    capsys.readouterr()
    assert main([*words, *rules]) == 4
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("beyond: ")]
    assert said
    assert all("allocation/loss<10: step" in line for line in said if " more; " not in line)


def test_a_single_checkpoint_is_refused(trained, ids, tmp_path, capsys):
    arguments = (trained, "--steps", "4", "--text", ids)
    with pytest.raises(
        CheckpointError, match=r"allocation is of the change between two checkpoints, and .* has one alone"
    ):
        scan(*arguments, "--measures", "allocation", out=tmp_path)
    assert not (tmp_path / "runs").exists()
    status, found = scan(*arguments, "--measures", "entropy,allocation", out=tmp_path)
    assert (status, list(found["curves"]), list(found["refused"])) == (3, ["entropy"], ["allocation"])


def test_numbers_that_overflow_on_the_way_are_left_out(trained, ids, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "series")
    change(folder / "step8", lambda t: t["gpt_neox.layers.0.attention.query_key_value.weight"].fill_(1e38))
    status, found = scan(folder, "--measures", "allocation", "--text", ids, "--steps", "2,4,8", out=tmp_path / "out")
    assert status == 3
    (fault,) = found["left_out"]
    assert (fault["step"], fault["measure"]) == (8, "allocation")
    assert "NaN or infinity" in fault["what"]
    assert json.dumps(found["curves"]["allocation/loss"])  # that of 2 to 4 stands


def test_fewer_windows_at_a_time_where_the_vocabulary_is_large():
    """The loss keeps logits over the vocabulary: 4,096 tokens of 262,144 words would be 13 GB."""
    from joma.scan.model.allocation import LOGITS, _at_once

    for words, windows in ((50_304, 8), (262_144, 2), (2_000_000, 1)):
        assert _at_once(SimpleNamespace(vocab_size=words), 512) == windows
        assert windows == 1 or windows * 512 * words <= LOGITS


def test_a_layer_that_is_called_twice_has_the_mean_of_both(trained, ids):
    model = in_doubles(trained / "step8")
    model.gpt_neox.layers[1] = model.gpt_neox.layers[0]
    windows = torch.from_numpy(np.load(ids))[:32].view(2, CONTEXT)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        want = by_weights(model, windows)(parameters)  # two entropies, and the loss
    found = entropies_and_loss(model, windows)(parameters)
    torch.testing.assert_close(found, torch.stack([want[:2].mean(), want[2]]), check_dtype=False, rtol=1e-5, atol=0)
