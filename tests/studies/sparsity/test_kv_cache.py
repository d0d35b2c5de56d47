"""A cache that forgets: a tiny series is trained and cut, and verdicts follow sparsity and costs in the record."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from records import altered, carried_out, changed, found, verdicts

from joma.claims import guards
from joma.claims.contract import silent
from joma.claims.execute import execute, judge, plain_config
from joma.figures.style import house_style
from joma.measure.sparsity import effective_keys, heavy_hitters, keys_above, stability, top_mass
from joma.runs import Run
from joma.studies.sparsity.kv_cache import run as measures
from joma.studies.sparsity.kv_cache.run import KvCacheConfig
from joma.studies.sparsity.kv_cache.stories import written
from joma.studies.sparsity.kv_cache.study import STUDY

pytest.importorskip("transformers", reason="transformers is not installed here (the extra hf)")

TINY = KvCacheConfig(layers=1, width=16, heads=2, vocabulary=270, context=32, batch=2, steps=2, checkpoints=(1,),
                     seeds=1, characters=30_000, held_out=3_000, sequences=4, sinks=1, seed=1)  # fmt: skip
NOT, OPEN, LITTLE = "not above its control", "undecided", "only qualitative"
STEPS, SEQUENCES = (0, 50, 100), 30
CONFIG = KvCacheConfig(seeds=4, steps=100, checkpoints=(50,), sequences=SEQUENCES)


def test_lines_are_said_twice_in_words_of_the_text():
    text = "one two two three three three " * 20
    lines = measures.said_twice(text, 7, 1000, 0).splitlines()
    assert lines[::2] == lines[1::2]
    assert len(set(lines)) == len(lines) // 2 > 5
    assert {len(line.split()) for line in lines} == {7}
    assert {word for line in lines for word in line.split()} == {"one", "two", "three"}
    assert 900 < len("\n".join(lines)) < 1200
    assert measures.said_twice(text, 7, 1000, 1).splitlines() != lines


@pytest.mark.long
def test_networks_that_look_far_back_are_trained_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.delenv("JOMA_DATA", raising=False)
    texts = []
    train = measures.train_series

    def seen(folder, text, config, **options):
        texts.append(text)
        return train(folder, text, config, **options)

    monkeypatch.setattr(measures, "train_series", seen)
    far = replace(TINY, far=True, far_characters=20_000, line=5, far_batch=4, far_vocabulary=300)
    with carried_out(STUDY, far, tmp_path / "run.sqlite") as run:
        for name in ("loss", "permuted", "cut", "effective by sequence"):
            assert run.array(f"far/seed 0/{name}").shape == run.array(f"seed 0/{name}").shape
        assert not np.array_equal(run.array("far/seed 0/loss"), run.array("seed 0/loss"))
        assert [one.kind for one in (measures.Series(run), measures.Series(run, measures.FAR))] == ["", "far/"]
    lines = texts[1].splitlines()[:-1]  # held out is the end: it may cut a line
    assert all(one == again for one, again in zip(lines[::2], lines[1::2], strict=False))
    assert texts[0] != texts[1]


def _far_back(near, name, step, worth):
    if name.endswith("permuted"):
        return near.at(name.replace("permuted", "loss"), step) + 4.0 + (worth if step == STEPS[-1] else 0.0)
    return near.at(name, step) + (4.0 if name.endswith(("/loss", "cut")) else 0.0)


@pytest.mark.parametrize(
    ("worth", "costs", "verdict"),
    [
        (1.0, {}, "holds"),
        (0.0, {}, NOT),  # distant words are worth nothing: no cut could hurt
        (1.0, {"h2o": 0.3, "random": 0.6, "window": 0.6}, LITTLE),  # better than the others, and far from free
        (1.0, {"h2o": 0.3}, "fails"),
    ],
)
def test_what_far_networks_lose(tmp_path, worth, costs, verdict):
    with record(tmp_path / "near.sqlite", **costs) as near:
        far = Run.create(tmp_path / "far.sqlite", study=STUDY.name, config=near.config, version=STUDY.version)
        for name in near.names():
            for step, value in zip(near.steps(name), near.array(name), strict=True):
                far.record(int(step), {name: value, f"far/{name}": _far_back(near, name, int(step), worth)})
        finding = found(STUDY, far, "a-fifth-suffices-far-back")
        assert finding.verdict == verdict
        assert finding.printed.controls[0].value == pytest.approx(worth)
        assert found(STUDY, near, "a-fifth-suffices-far-back").verdict == "at paper scale"
        with house_style():
            names = [drawing.name for drawing in STUDY.draw(far)]
        assert names == ["cost-by-share", "sparsity-and-cost", "cost-by-share-far-back"]


def record(path, *, end=0.97, noise=0.5, start=0.1, left_out=0.9, overlap=0.6, untrained_overlap=0.2, spread=0.01,
           slope=-0.3, loss=2.0, stories=None, **costs):  # fmt: skip
    """A record in which every claim holds. costs: at a fifth of the cache, in nats; slope: of the cost by sparsity."""
    luck = np.random.default_rng(0)
    paid = {"window": 0.2, "sinks": 0.01, "h2o": 0.01, "random": 0.2, "top-k": 0.0} | costs
    run = Run.create(path, study=STUDY.name, config=plain_config(CONFIG), version=STUDY.version)
    for seed in range(CONFIG.seeds):
        away = spread * (luck.random() - 0.5)
        for step in STEPS:
            whole = loss + 0.3 * luck.standard_normal(SEQUENCES) if step else np.full(SEQUENCES, 5.7)
            sparse = 0.1 * luck.standard_normal(SEQUENCES)
            more = slope * sparse if step else 0 * sparse
            cut = np.stack([np.tile(whole + paid[one] + more - more.mean(), (3, 1)) for one in CONFIG.policies])
            heads = np.ones((2, 2))
            values = {
                "loss": whole, "permuted": whole + 0.1, "cut": cut, "zero": heads * (end if step else start) + away,
                "random zero": heads * noise, "effective": heads * (1 - (left_out if step else 0.0)) + away,
                "top": heads, "sink": 0.1 * heads, "overlap": heads * (overlap if step else untrained_overlap) + away,
                "chance": 0.1 * heads, "zero by sequence": sparse,
                "effective by sequence": 0.5 - sparse,
            }  # fmt: skip
            run.record(step, {f"seed {seed}/{name}": value for name, value in values.items()})
    if stories is not None:
        cut = np.stack([np.tile(1 + stories.get(o, 0.2) + 0.001 * luck.random(20), (3, 1)) for o in CONFIG.policies])
        heads = np.full((2, 2), 0.5)
        run.record(0, {"stories/loss": np.ones(20), "stories/cut": cut, "stories/zero": heads, "stories/sink": heads,
                       "stories/random zero": heads})  # fmt: skip
    return run


GOOD = {"stories": {"h2o": 0.01}}


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ({}, {}),
        ({"end": 0.9}, {"attention-is-sparse": LITTLE}),  # not 95 %
        ({"noise": 0.8, "end": 0.8}, {"attention-is-sparse": NOT}),  # no sparser than noise of the same spread
        ({"start": 0.8, "end": 0.8}, {"attention-is-sparse": NOT}),
        ({"noise": 0.95}, {"attention-is-sparse": OPEN}),  # no room above the control
        ({"noise": 0.9, "end": 0.8}, {"attention-is-sparse": NOT}),  # less sparse, by less than what matters
        ({"noise": 0.9, "end": 0.5}, {"attention-is-sparse": "fails"}),
        ({"left_out": 0.05}, {"sparsity-arises-in-training": LITTLE}),
        ({"left_out": -0.2}, {"sparsity-arises-in-training": "fails"}),
        ({"overlap": 0.2, "untrained_overlap": 0.2, "spread": 1e-4}, {"heavy-hitters-stay": NOT}),
        ({"h2o": 0.1}, {"a-fifth-of-the-cache-suffices": LITTLE}),  # better than chance, but not for nothing
        ({"random": 0.1, "h2o": 0.1}, {"a-fifth-of-the-cache-suffices": NOT}),
        ({"random": 0.1, "h2o": 0.2}, {"a-fifth-of-the-cache-suffices": "fails"}),
        ({"window": 0.01, "sinks": 0.01},
         {"a-fifth-of-the-cache-suffices": NOT, "first-tokens-rescue-the-window": NOT}),
        ({"sinks": 0.1}, {"first-tokens-rescue-the-window": LITTLE}),
        ({"sinks": 0.4}, {"first-tokens-rescue-the-window": "fails"}),
        ({"slope": 0.3}, {"sparsity-explains-what-eviction-costs": "fails"}),
        ({"stories": {"h2o": 0.2}}, {"a-fifth-suffices-others-network": NOT}),
        ({"stories": {"h2o": 0.1}}, {"a-fifth-suffices-others-network": LITTLE}),
        ({"stories": None}, {"a-fifth-suffices-others-network": "not run"}),
    ],
)  # fmt: skip
def test_verdicts_follow_the_record(tmp_path, planted, expected):
    with record(tmp_path / "run.sqlite", **GOOD | planted) as run:
        findings = judge(STUDY, run)
        seen = {finding.claim.name: finding.verdict for finding in findings}
        near = {claim.name: "holds" for claim in STUDY.claims} | {"a-fifth-suffices-far-back": "at paper scale"}
        assert seen == near | expected


def test_the_loss_is_held_fixed(tmp_path):
    """Costs that follow the loss alone look like sparsity where sparsity follows the loss; held fixed, they do not."""
    luck = np.random.default_rng(1)

    def follows(name, step, value):
        if name.endswith("cut"):
            rows = np.broadcast_to(value.mean(-1, keepdims=True), value.shape)
            return rows + 0.5 * loss[name[:6], step] + 0.01 * luck.standard_normal(value.shape)
        if name.endswith("effective by sequence"):
            return loss[name[:6], step] + 0.01 * luck.standard_normal(value.shape)
        return value

    with record(tmp_path / "a.sqlite") as run:
        loss = {(f"seed {s}", step): run.at(f"seed {s}/loss", step) for s in range(CONFIG.seeds) for step in STEPS}
        finding = found(STUDY, changed(run, follows), "sparsity-explains-what-eviction-costs")
        assert finding.verdict in (NOT, OPEN)
        assert abs(finding.main.effect) < 0.2


def test_networks_that_did_not_learn_do_not_count(tmp_path):
    with record(tmp_path / "a.sqlite", **GOOD) as run:
        finding = found(STUDY, altered(run, "seed 1/loss", lambda x: x * 0 + 5.7), "attention-is-sparse")
        assert finding.main.seeds == 3
        assert finding.details["left out because they did not learn"] == {"networks": 1}

        def none(name, step, value):
            return value * 0 + 5.7 if name.endswith("/loss") and "seed" in name else value

        with changed(run, none) as copy, house_style():
            seen = dict(verdicts(STUDY, copy))
            assert seen.pop("a-fifth-suffices-others-network") == "holds"
            assert seen.pop("a-fifth-suffices-far-back") == "at paper scale"
            assert set(seen.values()) == {"not run"}
            assert STUDY.draw(copy) == []


def test_sparsity_is_that_of_the_measures():
    """From the weights of a model: the same numbers as joma.measure has from queries and keys."""
    source = torch.Generator().manual_seed(0)
    q, k = 2 * torch.randn(2, 3, 2, 40, 8, generator=source)
    future = torch.ones(40, 40, dtype=torch.bool).triu(1)
    weights = (q @ k.mT / 8**0.5).masked_fill(future, -torch.inf).softmax(-1)
    ours = measures._of_weights(weights[:, None], source)
    late, seen = slice(20, None), torch.arange(1, 41)
    zero = (1 - keys_above(q, k, 0.01, relative=True) / seen)[..., late].mean(-1)
    torch.testing.assert_close(ours["zero"][:, 0], zero)
    torch.testing.assert_close(ours["effective"][:, 0], (effective_keys(q, k) / seen)[..., late].mean(-1))
    torch.testing.assert_close(ours["top"][:, 0], top_mass(q, k, 0.1)[..., late].mean(-1))
    sets = [heavy_hitters(q, k, 0.1, queries=part, among=20, even=True) for part in ((20, 30), (30, 40))]
    shared = stability(*sets)
    torch.testing.assert_close(ours["overlap"][:, 0].double(), shared.overlap)
    torch.testing.assert_close(ours["chance"][:, 0].double(), shared.chance, atol=1e-6, rtol=0)


def test_random_logits_have_the_spread_of_the_real_ones():
    """Gaussian logits are their own control; weights on one key alone are sparser than noise of their spread."""
    source = torch.Generator().manual_seed(0)
    future = torch.ones(64, 64, dtype=torch.bool).triu(1)
    logits = 2.5 * torch.randn(4, 1, 8, 64, 64, generator=source)
    found = measures._of_weights(logits.masked_fill(future, -torch.inf).softmax(-1), source)
    assert found["zero"].mean() == pytest.approx(found["random zero"].mean().item(), abs=0.02)
    one = torch.where(torch.eye(64, dtype=torch.bool), 5.0, 0.0).expand(1, 1, 1, 64, 64)
    found = measures._of_weights(one.masked_fill(future, -torch.inf).softmax(-1), source)
    assert found["zero"].mean() > 0.9 > 0.1 > found["random zero"].mean()


def test_shuffling_keeps_the_words_and_the_second_half():
    tokens = torch.arange(40).view(2, 20)
    mixed = measures.shuffled(tokens, 3)
    assert torch.equal(mixed[:, 10:], tokens[:, 10:])
    assert torch.equal(mixed[:, :10].sort().values, tokens[:, :10])
    assert not torch.equal(mixed, tokens)
    assert not torch.equal(mixed, measures.shuffled(tokens, 4))


def uniform(ids, **options):
    weights = torch.ones(len(ids), 2, 16, 16).tril()
    logits = torch.zeros(len(ids), 1, 50)
    return SimpleNamespace(attentions=[weights / weights.sum(-1, keepdim=True)], logits=logits, past_key_values=0)


def test_a_seed_decides_what_is_drawn():
    told = [written(uniform, 2, 8, seed).tolist() for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]
    logits = 3 * torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    sharp = logits.masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)

    def uneven(ids, **options):
        return SimpleNamespace(attentions=[sharp.expand(len(ids), -1, -1, -1)])

    ids = torch.zeros(6, 16, dtype=torch.long)
    found = [measures.sparsity(uneven, ids, seed)["random zero"].tolist() for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_all_that_is_drawn_has_the_seed_of_the_config(tmp_path, monkeypatch):
    seen = {}
    ids = torch.zeros(2, 16, dtype=torch.long)
    model = SimpleNamespace(to=lambda device: uniform)

    def note(name, at, result=ids):
        monkeypatch.setattr(measures, name, lambda *args, **more: seen.setdefault(name, at(args, more)) * 0 + result)

    note("losses", lambda args, more: more["seed"], torch.zeros(2, 16))
    note("shuffled", lambda args, more: args[1])
    note("written", lambda args, more: args[3])
    monkeypatch.setattr(measures, "sparsity", lambda model, tokens, seed: seen.setdefault("sparsity", seed) and {})
    monkeypatch.setattr(measures, "find_stories", lambda: tmp_path)
    monkeypatch.setattr(measures, "load_stories", lambda path: model)
    monkeypatch.setattr(measures, "_train_and_measure", lambda *args: None)
    with Run.create(tmp_path / "run.sqlite", study=STUDY.name, config={}) as run:
        measures.run(replace(TINY, seed=5), run, silent)
    assert seen == dict.fromkeys(("losses", "shuffled", "written", "sparsity"), 5)


def test_both_kinds_of_text_are_held_out(tmp_path, monkeypatch):
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    (folder / "train.txt").write_text("words to train on ", encoding="utf-8")
    (folder / "valid.txt").write_text("VALID", encoding="utf-8")
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    monkeypatch.setattr(measures, "source_text", lambda characters: "0123456789abcdef"[:characters])
    size = SimpleNamespace(characters=10, held_out=4, wikitext=True)
    assert measures._corpus(size) == "words to train on 01234567VA89"
    assert measures._corpus(SimpleNamespace(characters=10, wikitext=False)) == "0123456789"


def test_what_is_not_there_is_not_run(tmp_path, monkeypatch):
    monkeypatch.delenv("JOMA_DATA", raising=False)
    result = execute(STUDY, replace(TINY, wikitext=True), tmp_path)
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert "WikiText-2 is not at" in result.findings[0].measured
    if not torch.cuda.is_available():
        result = execute(STUDY, replace(TINY, device="cuda"), tmp_path / "cuda")
        assert "device cuda needs a CUDA GPU" in result.findings[0].measured
    monkeypatch.setattr(guards, "find_spec", lambda name: None)
    result = execute(STUDY, TINY, tmp_path / "bare")
    assert {finding.verdict for finding in result.findings} == {"not run"}
    assert "transformers is not installed (the extra hf)" in result.findings[0].measured
    assert "joma verify kv-cache" in result.findings[0].measured
