"""QKClip against the rule of its source, written out in float64 for each architecture (`clipped`)."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
import transformers as hf
from clipped import FAMILIES, SHARED, attentions, build, clip_slowly, largest, text
from refusals import refusals

from joma.measure._largest import largest_products
from joma.models import Decoder, DecoderConfig
from joma.optim import QKClip
from joma.probes._compiled import _INSTALLED


def between(tables):
    """A threshold with heads on both sides, in the middle of all."""
    return torch.tensor(tables, dtype=torch.float64).flatten().quantile(0.5).item()


def clipped(kind, threshold, dtype=torch.float64, **options):
    model = build(kind, dtype)
    clip = QKClip(model, threshold, **options)
    model(text())
    clip.step()
    clip.remove()
    return model, clip


@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_are_those_of_the_rule(kind):
    slow = build(kind)
    before = largest(slow, text())
    threshold = between(before)
    clip_slowly(slow, kind, before, threshold)
    model, clip = clipped(kind, threshold)
    for (name, parameter), (_, expected) in zip(model.named_parameters(), slow.named_parameters(), strict=True):
        torch.testing.assert_close(
            parameter, expected, rtol=1e-12, atol=1e-13, msg=lambda why, name=name: f"{name}: {why}"
        )
    torch.testing.assert_close(
        torch.stack([*clip.largest.values()]), torch.tensor(before, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )
    assert len(clip.largest) == len(attentions(model)) == 2
    assert any(not torch.equal(*pair) for pair in zip(model.parameters(), build(kind).parameters(), strict=True))


def decoder_and_logits(ids, **options):
    """A decoder, and (members, layers, heads) largest logits of whole matrices."""
    shape = {"vocabulary": 7, "layers": 3, "width": 8, "heads": 2, "mlp": 8, "context": 6}
    decoder = Decoder(DecoderConfig(**shape, **options), seeds=[0, 1]).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    products = {}
    decoder(ids, look=lambda layer, name, value: products.__setitem__((layer, name), value.detach()))
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    logits = [products[i, "query"] @ products[i, "key"].mT / 2 for i in range(3)]
    return decoder, torch.stack([each.masked_fill(hidden, -torch.inf).amax((1, 3, 4)) for each in logits], 1)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_members_of_a_decoder_are_clipped_each_for_itself(qk_norm, given):
    ids = torch.arange(24).view(4, 6) % 7
    decoder, before = decoder_and_logits(ids, qk_norm=qk_norm)
    threshold = before.quantile(0.5).item()
    clip = QKClip(decoder, threshold, probe=None if given else ids)
    clip.step(before if given else None)
    slow, _ = decoder_and_logits(ids, qk_norm=qk_norm)
    with torch.no_grad():
        for member, layer, head in torch.cartesian_prod(*map(torch.arange, before.shape)).tolist():
            root = (threshold / max(threshold, before[member, layer, head].item())) ** 0.5
            for first in (0,) if qk_norm else (0, 8):
                at = slice(first + 4 * head, first + 4 * head + 4)
                for name in ("query_scale", "key_scale") if qk_norm else ("qkv", "qkv_bias"):
                    getattr(slow, name)[member, layer, ..., at] *= root
    for (name, parameter), expected in zip(decoder.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=0, msg=lambda why, name=name: f"{name}: {why}")
    assert clip.clips["attention"].view(before.shape).equal((before > threshold).long())
    start = decoder_and_logits(ids, qk_norm=qk_norm)[0].state_dict()
    decoder.load_state_dict(start)
    clip.step(before if given else None)  # a second time, from the same weights
    for parameter, expected in zip(decoder.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "kind", ["gpt2", "bert", "qwen2", "gemma2", "gemma3", "qwen3", "olmo2", "deepseek_v3", "falcon"]
)
def test_on_the_same_batch_no_logit_of_a_first_layer_is_above_the_threshold_any_more(kind):
    """Scaled heads end at the threshold; where no gain is shared the others stay. Later layers read other numbers."""
    before = torch.tensor(largest(build(kind), text())[0], dtype=torch.float64)
    threshold = before.quantile(0.5).item()
    model, _ = clipped(kind, threshold)
    after = torch.tensor(largest(model, text())[0], dtype=torch.float64)
    expected = before.clamp(max=threshold)
    if kind in SHARED:
        expected = before * (threshold / before.max())
    torch.testing.assert_close(after, expected, rtol=1e-6, atol=1e-6)  # Gemma's norms compute in float32


def test_heads_below_the_threshold_stay_bit_for_bit():
    for kind in ("gpt2", "qwen2", "deepseek_v3", "olmo2"):
        slow = build(kind, torch.float32)
        tables = largest(slow, text())
        threshold = between(tables)
        model, clip = clipped(kind, threshold, torch.float32)
        calm = [[1.0 if each <= threshold else float("nan") for each in row] for row in tables]
        with torch.no_grad():  # what a head above could have changed becomes NaN
            for attn, row in zip(attentions(slow), calm, strict=True):
                FAMILIES[kind][2](attn, row)
        for mine, theirs in zip(model.parameters(), slow.parameters(), strict=True):
            assert torch.equal(mine[~theirs.isnan()], theirs[~theirs.isnan()])
        seen = torch.stack([*clip.clips.values()]).tolist()
        assert seen == [[int(each > threshold) for each in row] for row in tables]


@pytest.mark.parametrize("kind", ["gpt2", "gpt2, eager"])
def test_all_passes_since_the_last_step_count_and_none_before_it(kind):
    model = build(kind)
    one, other = (torch.tensor(largest(model, text(seed)), dtype=torch.float64) for seed in (1, 2))
    clip = QKClip(model, 1e9)
    with torch.no_grad():
        model.eval()(text(3))  # an evaluation
    model.train()
    for seed in (1, 2):
        model(text(seed)).logits.sum().backward()
    clip.step()
    torch.testing.assert_close(torch.stack([*clip.largest.values()]), torch.maximum(one, other))
    model(text(2))
    clip.step()
    torch.testing.assert_close(torch.stack([*clip.largest.values()]), other)
    clip.step()  # no pass since
    assert clip.steps == 3
    clip.remove()
    assert model.config._attn_implementation == ("eager" if "eager" in kind else "sdpa")
    assert not [name for each in model.modules() for name in vars(each) if "joma" in name]


def test_calls_like_those_before_take_a_short_way(monkeypatch):
    """With a stand-in for the kernel, which is for CUDA: what it is given, and that other shapes go another way."""
    ways, calls = [], []

    def again(q, k, mask, real, options):
        ways.append(q.shape[0])

        def call(q, k, mask, out):
            calls.append(q.shape[0])
            largest_products(q, k, into=out, **options)

        return call

    monkeypatch.setattr("joma.optim.qk_clip.again", again)
    model = build("gpt2")
    clip = QKClip(model, 1e9)
    for seeds in ((1,), (2, 3), (4,), (5, 6)):
        batches = [text(seed, batch=1 + seed // 6) for seed in seeds]
        for batch in batches:
            model(batch)
        clip.step()
        expected = torch.tensor([largest(model.eval(), batch) for batch in batches], dtype=torch.float64).amax(0)
        torch.testing.assert_close(torch.stack([*clip.largest.values()]), expected)
        model.train()
    clip.remove()
    assert (ways, calls) == ([1, 1, 2, 2], [1] * 8 + [2] * 2)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "falcon"])
def test_a_probe_batch_is_read_every_so_many_steps_and_leaves_no_trace(kind):
    model = build(kind)
    before = largest(model, text(5))
    slow = build(kind)
    clip_slowly(slow, kind, before, threshold := between(before))
    clip = QKClip(model, threshold, probe={"input_ids": text(5)}, every=3)
    luck = torch.random.get_rng_state()
    for step in range(1, 4):
        model(text(step))
        clip.step()
        same = all(torch.equal(*pair) for pair in zip(model.parameters(), build(kind).parameters(), strict=True))
        assert same == (step < 3)
    assert torch.equal(luck, torch.random.get_rng_state())
    assert all(each.training for each in model.modules())
    for mine, expected in zip(model.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-7)


def test_clips_count_over_steps_of_all_layers_or_of_some():
    clip = QKClip(build("gpt2"), threshold=10.0)
    first, second = "transformer.h.0.attn", "transformer.h.1.attn"
    logits = {first: torch.tensor([20.0, 5.0, 20.0, 5.0]), second: torch.tensor([5.0, 5.0, 20.0, 20.0])}
    begun = clip.state_dict()
    clip.step(logits)
    clip.step(logits)
    clip.step({second: torch.tensor([20.0, 5.0, 5.0, 5.0])})
    assert {name: each.tolist() for name, each in clip.clips.items()} == {first: [2, 0, 2, 0], second: [1, 0, 2, 2]}
    assert {name: each.tolist() for name, each in clip.largest.items()} == {
        first: [20, 5, 20, 5], second: [20, 5, 5, 5]
    }  # fmt: skip
    clip.load_state_dict(begun)
    assert clip.clips == clip.largest == {}
    clip.step({second: torch.tensor([20.0, 5.0, 5.0, 5.0])})
    assert clip.clips[second].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("every", [1, 2])
def test_a_training_that_resumes_ends_where_the_other_does(every):
    def train(model, optimizer, clip, steps):
        for step in steps:
            model(text(step)).logits.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            clip.step()
        return model

    def begun():
        model = build("gpt2", torch.float32)
        return model, torch.optim.AdamW(model.parameters(), lr=0.05), QKClip(model, 8.0, every=every)

    whole, clip = train(*(parts := begun()), range(5)), parts[2]
    model, optimizer, first = begun()
    train(model, optimizer, first, range(3))
    kept = [each.state_dict() for each in (model, optimizer, first)]
    again = begun()
    for each, state in zip(again, kept, strict=True):
        each.load_state_dict(state)
    train(*again, range(3, 5))
    assert all(torch.equal(*pair) for pair in zip(whole.parameters(), again[0].parameters(), strict=True))
    assert again[2].steps == clip.steps == 5
    for table in ("clips", "largest"):
        assert all(torch.equal(getattr(clip, table)[name], each) for name, each in getattr(again[2], table).items())
    assert sum(int(each.sum()) for each in clip.clips.values()) > 0
    with pytest.raises(ValueError, match="it has no clips"):
        clip.load_state_dict({"steps": 1, "largest": {}})


@pytest.mark.parametrize("kind", ["gpt2", "gemma3"])
@pytest.mark.parametrize("follow", [False, True])
def test_moments_follow_only_where_that_is_wanted(kind, follow):
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    model(text()).logits.square().mean().backward()
    optimizer.step()
    held = {
        name: {key: each.clone() for key, each in optimizer.state[p].items()} for name, p in model.named_parameters()
    }
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    offset = 1 if kind == "gemma3" else 0
    with torch.no_grad():
        before = [max(row) for row in largest(model, text())]
    clip = QKClip(model, min(before) / 2, moments=optimizer if follow else None)
    model(text())
    clip.step()
    moved = 0
    for name, parameter in model.named_parameters():
        factor = torch.where(weights[name] + offset == 0, 1.0, (parameter + offset) / (weights[name] + offset)).detach()
        moved += not torch.equal(parameter, weights[name])
        for key, power in (("exp_avg", 1), ("exp_avg_sq", 2), ("max_exp_avg_sq", 2)):
            wanted = held[name][key] * (factor**power if follow else 1)
            torch.testing.assert_close(optimizer.state[parameter][key], wanted, rtol=1e-9, atol=0)
    assert moved == 4


def test_moments_of_an_unknown_kind_are_refused():
    model = build("llama")
    optimizer = torch.optim.Adafactor(model.parameters())
    model(text()).logits.sum().backward()
    optimizer.step()
    clip = QKClip(model, 1e-3, moments=optimizer)
    model(text())
    with pytest.raises(ValueError, match=r"moments must be an optimizer that holds exp_avg, .*: Adafactor has row_var"):
        clip.step()


class Plain(torch.nn.Module):
    """nanoGPT's way: one fused layer, and attention by hand unless told otherwise."""

    def __init__(self, by_hand=False, name="c_attn"):
        super().__init__()
        self.name, self.by_hand = name, by_hand
        self.add_module(name, torch.nn.Linear(16, 48))

    def forward(self, x):
        q, k, v = queries_and_keys(self, x, values=True)
        if self.by_hand:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            return ((q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def queries_and_keys(module, x, values=False):
    parts = [each.unflatten(-1, (2, -1)).transpose(1, 2) for each in getattr(module, module.name)(x).chunk(3, -1)]
    return parts if values else parts[:2]


@pytest.mark.parametrize("kind", ["sdpa", "by hand", "MultiheadAttention"])
@pytest.mark.parametrize("probed", [False, True])
def test_modules_of_your_own(kind, probed):
    torch.manual_seed(0)
    layers = {"MultiheadAttention": lambda: torch.nn.MultiheadAttention(16, 2, batch_first=True, add_bias_kv=True)}
    layer = layers.get(kind, lambda: Plain(kind == "by hand"))()
    x = 4 * torch.randn(3, 7, 16)
    given = (x, x, x) if kind == "MultiheadAttention" else (x,)
    names = ("in_proj_weight", "in_proj_bias") if len(given) == 3 else ("c_attn.weight", "c_attn.bias")
    start = {name: each.detach().clone() for name, each in layer.named_parameters()}
    q, k, _ = (x @ start[names[0]].T + start[names[1]]).double().chunk(3, -1)
    logits = torch.einsum("bqhd,bkhd->hbqk", q.unflatten(-1, (2, 8)), k.unflatten(-1, (2, 8))) / 8**0.5
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) & (len(given) == 1)
    before = logits.masked_fill(hidden, -torch.inf).amax((1, 2, 3))
    threshold = float(before.mean())
    attention = {Plain: queries_and_keys} if kind == "by hand" else None
    model = torch.nn.Sequential(layer) if len(given) == 1 else layer
    clip = QKClip(model, threshold, probe=given if probed else None, attention=attention)
    for _ in range(2):  # hooks are others from the second step on
        model(*(each / 2 for each in given))
        model(*given)
        clip.step()
    (after,) = clip.largest.values()
    torch.testing.assert_close(after, before.clamp(max=threshold), rtol=1e-5, atol=1e-5)
    root = (threshold / before.clamp(min=threshold)).sqrt().repeat_interleave(8)
    factor = torch.cat([root, root, torch.ones(16)]).float()
    now = dict(layer.named_parameters())
    torch.testing.assert_close(now[names[0]], start[names[0]] * factor[:, None], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(now[names[1]], start[names[1]] * factor, rtol=1e-5, atol=1e-7)
    if "bias_k" in start:
        torch.testing.assert_close(now["bias_k"], start["bias_k"] * root.float(), rtol=1e-5, atol=1e-7)
    clip.remove()
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


@pytest.mark.parametrize("monitored", [False, True])
def test_compiled_models_are_clipped_with_a_monitor_beside(monitored):
    from joma.monitor import Monitor

    torch.compiler.reset()
    model = build("gpt2")
    called = torch.compile(model, backend="eager")
    slow = build("gpt2")
    before = largest(slow, text())
    clip_slowly(slow, "gpt2", before, threshold := between(before))
    clip = QKClip(called, threshold)
    monitor = Monitor(called, inside=True, every=1, measures=["largest_logit"], alarms=[])
    with monitor if monitored else nullcontext():
        called(text())
        clip.step()
        if monitored:
            monitor.step()
            seen = torch.as_tensor(monitor.latest["largest_logit"].values)
            torch.testing.assert_close(seen, torch.tensor(before, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert model.config._attn_implementation == "joma_inside"
    clip.remove()
    assert model.config._attn_implementation == "sdpa"
    for mine, expected in zip(model.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dropped", ["clip", "both"])
def test_one_that_is_dropped_without_remove_is_taken_off_and_kept_by_nobody(dropped):
    model = build("gpt2")
    gc.collect()  # what other tests dropped
    before = len(_INSTALLED)
    clip = QKClip(model, 1e9)
    model(text())
    clip.step()
    here = weakref.ref(model)
    assert len(_INSTALLED) > before
    del clip
    if dropped == "both":
        del model
    gc.collect()
    assert len(_INSTALLED) == before
    assert (here() is None) == (dropped == "both")
    if dropped == "clip":
        assert model.config._attn_implementation == "sdpa"
        model(text())


def test_frozen_layers_are_left_out():
    model = build("llama")
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(False)
    stepped(frozen := build("llama").requires_grad_(False), text(), threshold=1e-3)  # all of them
    assert all(torch.equal(*pair) for pair in zip(frozen.parameters(), build("llama").parameters(), strict=True))
    clip = QKClip(model, 1e-3)
    model(text())
    clip.step()
    start = build("llama").model.layers
    for at in (0, 1):
        mine, theirs = (each[at].self_attn.q_proj.weight for each in (model.model.layers, start))
        assert torch.equal(mine, theirs) == (at == 0)


def test_a_model_that_shows_logits_alone_is_read_by_a_probe_batch():
    """GPT-J applies softmax by itself; nothing is added to its logits, so that scaled heads end at the threshold."""
    torch.manual_seed(0)
    model = hf.GPTJModel(hf.GPTJConfig(vocab_size=61, n_embd=16, n_layer=1, n_head=2, n_positions=16, rotary_dim=4))
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.5)
    clip = QKClip(model, 1e9, probe=text())
    clip.step()
    (before,) = (each.clone() for each in clip.largest.values())
    clip.threshold = float(before.mean())
    for _ in range(3):  # scaled at the first, read again at the second
        clip.step()
    torch.testing.assert_close(
        next(iter(clip.largest.values())), before.clamp(max=clip.threshold), rtol=1e-5, atol=1e-5
    )


def test_logits_that_are_not_finite_change_nothing():
    model, start = build("gpt2"), build("gpt2")
    clip = QKClip(model, 1.0)
    model(text())
    clip.step({f"transformer.h.{at}.attn": torch.tensor([torch.inf, torch.nan, 0.5, -3.0]) for at in (0, 1)})
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), start.parameters(), strict=True))


def stepped(model, *given, **options):
    clip = QKClip(model, **options)
    model(*given)
    clip.step()


def half_frozen():
    model = build("llama")
    model.model.layers[0].self_attn.q_proj.weight.requires_grad_(False)
    return model


def quantised():
    model = build("llama")
    model.model.layers[1].self_attn.k_proj = torch.nn.Sequential(model.model.layers[1].self_attn.k_proj)
    return model


def tied():
    model = build("llama")
    model.model.layers[1].self_attn.k_proj.weight = model.model.layers[0].self_attn.k_proj.weight
    model.model.layers[1].self_attn.q_proj.weight = model.model.layers[0].self_attn.q_proj.weight
    return model


def without_gain():
    layer = Plain()
    layer.q_norm = layer.k_norm = torch.nn.RMSNorm(8, elementwise_affine=False)
    return torch.nn.Sequential(layer)


X = torch.randn(1, 4, 16)
SMALL = DecoderConfig(vocabulary=5, width=4, mlp=4)
BLOOM = {"vocab_size": 9, "hidden_size": 8, "n_layer": 1, "n_head": 2}
test_refusals = refusals(
    (lambda: QKClip("model"), "model must be a torch module, got 'model'"),
    (lambda: QKClip(Plain(), 0), "threshold must be a number above 0, got 0"),
    (lambda: QKClip(Plain(), float("nan")), "threshold must be a number above 0, got nan"),
    (lambda: QKClip(Plain(), every=0), "every must be a whole number of at least 1, got 0"),
    (lambda: QKClip(Plain(), moments=3), "moments must be an optimizer or None, got 3"),
    (lambda: QKClip(Plain(), probe=3), "probe must be a tensor, a tuple of tensors, or a mapping .*, got 3"),
    (lambda: stepped(torch.nn.Linear(16, 2), X), "saw no attention in the training pass of Linear"),
    (lambda: stepped(torch.nn.Sequential(Plain(by_hand=True)), X), "saw no attention in the training pass"),
    (lambda: stepped(torch.nn.Sequential(Plain(name="mix")), X), r"cannot be clipped: 0 \(Plain\) has no known layers"),
    (lambda: stepped(half_frozen(), text()), "model.layers.0.self_attn has frozen weights among those"),
    (lambda: stepped(tied(), text()), "model.layers.1.self_attn shares weights of queries or keys"),
    (lambda: stepped(quantised(), text()), "model.layers.1.self_attn makes queries or keys by a Sequential"),
    (lambda: stepped(without_gain(), X), r"0 has norms of queries and keys \(RMSNorm\) without a gain to scale"),
    (lambda: QKClip(Decoder(SMALL, [0])).step(), "probe must be token ids"),
    (lambda: QKClip(Decoder(SMALL, [0, 1], kinds=[SMALL, SMALL.with_(qk_norm=True)], of=[0, 1])), "of several kinds"),
    (
        lambda: QKClip(Decoder(DecoderConfig(vocabulary=5, width=4, mlp=4, attention="sigmoid"), [0])),
        "sigmoid attention, and no softmax",
    ),
    (lambda: QKClip(hf.BloomModel(hf.BloomConfig(**BLOOM))), "BloomModel adds a bias that grows with the position"),
    (
        lambda: QKClip(hf.MambaModel(hf.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, state_size=4))),
        "cannot be clipped: mamba models have no softmax",
    ),
    (lambda: QKClip(build("gpt2")).step({"h": torch.ones(4)}), "largest names h, and the model has no such module"),
)
