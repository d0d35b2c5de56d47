"""Depth against width: equal counts, fair choices of the rate, and judges that the record can turn."""

import itertools
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
import torch
from every_study import (
    draws_labelled_figures,
    ends_the_same_after_an_interrupt,
    findings_survive_json,
    says_what_is_seen,
)
from records import carried_out, changed, found, verdicts

from joma.claims.contract import NotRun, silent
from joma.data.errors import CorpusError
from joma.data.text import Corpus
from joma.models.decoder import Decoder
from joma.runs import Run
from joma.studies.depth_width.depth_width import STUDY
from joma.studies.depth_width.depth_width import judge as _claims
from joma.studies.depth_width.depth_width import study as depth_width
from joma.studies.depth_width.depth_width.judge import DEEP, FLAT, Sweep, facts, kinds_of
from joma.studies.depth_width.depth_width.networks import (
    DepthWidthConfig,
    embeddings_of,
    find_shape,
    operations_of,
    parameters_of,
)
from joma.studies.depth_width.depth_width.texts import SHUFFLED, TextReader, shuffled
from joma.studies.depth_width.depth_width.trees import Tree, TreeReader, flattened

pytestmark = pytest.mark.usefixtures("no_other_text")

TINY = DepthWidthConfig(
    texts=("sympy", "wikitext-2"),
    tokens=30_000,
    vocabulary=40,
    layers=(1, 2),
    parameters=3_000,
    length=8,
    rates=(1e-2, 3e-2),
    steps=20,
    valid_sequences=6,
    ideal_samples=300,
    tree_layers=(1, 2),
    tree_parameters=3_000,
    tree_rates=(1e-2, 3e-2),
    tree_steps=20,
    valid_samples=20,
    points=2,
    timed=False,
)
TEXTS, TREES = ("sympy", "wikitext-2", SHUFFLED), (DEEP, FLAT)
SEEDS = np.array([-1.0, 0.0, 1.0])


@pytest.fixture(scope="module")
def config(data_folder):
    return replace(TINY, data=str(data_folder))


@pytest.fixture(scope="module")
def tiny(config, tmp_path_factory):
    return carried_out(STUDY, config, tmp_path_factory.mktemp("depth") / "run.sqlite")


# equal counts


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8, 16, 30])
@pytest.mark.parametrize(
    ("parameters", "vocabulary", "outputs", "multiple"),
    [(50_000, 100, None, 2), (400_000, 129, 8, 2), (4_000_000, 2048, None, 8)],
)
def test_every_shape_has_the_count_that_was_asked_for(parameters, vocabulary, outputs, multiple, layers):
    shape = find_shape(parameters, layers, vocabulary=vocabulary, outputs=outputs, context=16, multiple=multiple)
    assert (shape.layers, shape.width % multiple, shape.norm) == (layers, 0, "pre-layer")
    assert 0.99 <= parameters_of(shape) / parameters <= 1.01
    assert 2.5 <= shape.mlp / shape.width <= 5.5


@pytest.mark.parametrize("outputs", [None, 3])
def test_the_count_is_that_of_the_network(outputs):
    shape = find_shape(5_000, 3, vocabulary=20, outputs=outputs, context=8)
    network = Decoder(shape, [0])
    assert sum(p.numel() for p in network.parameters()) == parameters_of(shape)
    assert network.embedding.numel() + network.out.numel() == embeddings_of(shape)


def test_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    shape = find_shape(5_000, 3, vocabulary=20, context=8)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        Decoder(shape, [0])(torch.zeros(2, 8, dtype=torch.long), look=lambda *_: None)
    assert operations_of(shape) == 3 * counter.get_total_flops() / 16


def test_deeper_is_thinner():
    shapes = [find_shape(50_000, layers, vocabulary=100, context=16) for layers in (1, 2, 4, 8)]
    assert [shape.width for shape in shapes] == sorted((shape.width for shape in shapes), reverse=True)
    shares = [embeddings_of(shape) / parameters_of(shape) for shape in shapes]
    assert shares == sorted(shares, reverse=True)


# trees


def enumerated(tree, on):
    """P[class | tokens] by summing over all latents."""
    copies = (1 + tree.rho) / 2
    leaves = on.reshape(tree.classes, -1).tolist()

    def below(node, levels, tokens):
        if not levels:
            return copies if tokens[0] == node else 1 - copies
        parts = np.split(np.array(tokens), levels[0]) if len(levels) > 0 else []
        total = 1.0
        for part in parts:
            states = (0, 1) if len(levels) > 1 else (int(part[0]),)
            total *= sum(
                (copies if state == node else 1 - copies) * (below(state, levels[1:], part) if len(levels) > 1 else 1)
                for state in states
            )
        return total

    def of_class(k):
        return np.prod(
            [
                sum(
                    (copies if latent == (c == k) else 1 - copies) * below(latent, tree.branching, leaves[c])
                    for latent in (0, 1)
                )
                for c in range(tree.classes)
            ]
        )

    likely = np.array([of_class(k) for k in range(tree.classes)])
    return likely / likely.sum()


@pytest.mark.parametrize("branching", [(3,), (2, 2), (2, 1, 2)])
def test_the_best_reader_is_the_sum_over_all_latents(branching):
    tree = Tree(3, branching, 0.7)
    drawn = tree.hblt.sample(10, generator=torch.Generator().manual_seed(0))
    known = tree.log_posterior(drawn.on).exp().numpy()
    np.testing.assert_allclose(known, [enumerated(tree, on.int().numpy()) for on in drawn.on], rtol=1e-10)


def test_the_flat_tree_says_as_much_with_as_many_tokens():
    deep = Tree(4, (2, 2, 2), 0.9)
    flat = flattened(deep, 4_000)
    assert (flat.depth, flat.hblt.tokens, deep.depth) == (2, deep.hblt.tokens, 4)
    assert flat.uncertainty(4_000) == pytest.approx(deep.uncertainty(4_000), abs=0.01)
    assert flat.rho < deep.rho


def test_no_reader_is_better_than_the_best():
    deep = Tree(4, (2, 2), 0.9)
    reader = TreeReader([deep, flattened(deep, 3_000)], seed=0, seeds=2, batch=4, valid_samples=5, device="cpu")
    ideal = reader.ideal(3_000)
    assert (ideal[:, 0] < ideal[:, 1]).all()
    assert (ideal[:, 1] < reader.known_without()).all()


def test_seeds_and_halves_of_trees_differ():
    tree = Tree(3, (2, 2), 0.9)
    reader = TreeReader([tree], seed=0, seeds=2, batch=40, valid_samples=40, device="cpu")
    tokens, labels = reader.batch(3)
    assert tokens.shape == (2, 40, 12)
    assert labels.shape == (2, 40)
    assert not torch.equal(tokens[0], tokens[1])
    draws = [tokens, reader.batch(4)[0], *(half[0] for half in reader.halves())]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    assert torch.equal(reader.batch(3)[0], tokens)


# texts


def corpus(count=200):
    return Corpus("count", tuple(map(str, range(count))), dict.fromkeys(("train", "valid"), torch.arange(count)), "")


def test_shuffled_text_keeps_the_words_of_every_sequence():
    text = corpus(203)
    mixed = shuffled(text, 8).tokens["train"]
    assert not torch.equal(mixed, text.tokens["train"])
    for block in range(25):
        assert mixed[8 * block : 8 * block + 8].sort().values.tolist() == list(range(8 * block, 8 * block + 8))
    assert mixed[200:].tolist() == [200, 201, 202]


def reader_of(text, **changes):
    return TextReader([text], **{"seeds": 3, "batch": 2, "length": 8, "valid_sequences": 5, "device": "cpu", **changes})


def test_what_follows_is_the_next_word_and_every_seed_begins_elsewhere():
    reader = reader_of(corpus())
    firsts = set()
    for step in range(reader.epochs(0)):
        inputs, following = reader.batch(step)
        assert inputs.shape == (3, 2, 8)
        assert torch.equal(following, inputs + 1)
        firsts.add(tuple(inputs[:, 0, 0].tolist()))
    assert all(len(set(seeds)) == 3 for seeds in firsts)
    assert {seeds[0] for seeds in firsts} == {seeds[2] for seeds in firsts}  # in the end all read the same
    assert torch.equal(reader.batch(0)[0], reader.batch(reader.epochs(0))[0])


def test_the_halves_share_no_sequence():
    (one, targets), (other, _) = reader_of(corpus()).halves()
    assert one.shape == (3, 5, 8)
    assert torch.equal(targets, one + 1)
    assert not set(one.flatten().tolist()) & set(other.flatten().tolist())


def test_frequencies_are_what_a_reader_knows_without_learning():
    assert reader_of(corpus()).known_without() == pytest.approx(np.log(200))


@pytest.mark.parametrize("length", [110, 150])
def test_a_text_that_is_too_short_is_refused(length):
    with pytest.raises(CorpusError, match="length must"):
        reader_of(corpus(), length=length)


# the run


def test_verdicts_of_a_tiny_run(tiny):
    assert list(verdicts(STUDY, tiny)) == [claim.name for claim in STUDY.claims]
    assert list(kinds_of(tiny)) == [*TEXTS, *TREES]


def test_members_of_one_seed_start_alike_at_every_rate(tiny):
    start = Sweep(tiny, "sympy").curves[0, 0]  # (rates, seeds)
    np.testing.assert_allclose(start[0], start[1], rtol=1e-6)
    assert len(np.unique(start[0].round(6))) == 3


def test_networks_of_trees_learn_from_their_own_tree(tiny):
    for kind in TREES:
        sweep = Sweep(tiny, kind)
        assert sweep.judging.shape == (2, 2, 3)
        assert sweep.curves[:, -1].mean() < sweep.curves[:, 0].mean()


def test_sizes_are_recorded(tiny, config):
    for name, count in (("text, 2 layers", config.parameters), ("tree, 1 layers", config.tree_parameters)):
        fact = facts(tiny, name)
        assert fact["parameters"] == pytest.approx(count, rel=0.01)
        assert 0 < fact["embedding share"] < 1
        assert np.isnan(fact["seconds per step"])  # not timed


def test_an_interrupted_run_ends_the_same(config, tiny, tmp_path):
    ends_the_same_after_an_interrupt(STUDY, config, tiny, tmp_path / "again", after=0.1)


def test_findings_survive_json(tiny):
    findings_survive_json(STUDY, tiny)


def test_figures(tiny, tmp_path):
    draws_labelled_figures(STUDY, tiny, tmp_path)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """With python alone."""
    folder = tmp_path_factory.mktemp("timed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JOMA_DATA", raising=False)
        patch.setenv("JOMA_CACHE", str(folder / "cache"))
        return carried_out(STUDY, replace(TINY, timed=True), folder / "run.sqlite")


def test_steps_are_timed(timed, tmp_path):
    """By a clock that gives every step 2 s and every measurement 0.5 s: only the time between measurements counts."""

    def clock(name, step, value):
        part = name.rpartition("/")[2]
        return value * 0 + 2.0 * step + 0.5 * (part == "ends") if part in ("begins", "ends") else value

    run, name = changed(timed, tmp_path / "clock.sqlite", clock), "text, 1 layers"
    steps, members = run.steps(f"{name}/begins").tolist(), run.array(f"{name}/begins").shape[1]
    each = [(2.0 * after - (2.0 * before + 0.5)) / (after - before) for before, after in itertools.pairwise(steps)]
    assert facts(run, name)["seconds per step"] == pytest.approx(median(each) / members)
    assert facts(timed, name)["seconds per step"] > 0
    assert "milliseconds per network and step" in found(STUDY, timed, _claims.DEEPER[DEEP]).details
    assert "“time of a step”" in STUDY.draw(timed)[0].description


def test_a_text_that_is_not_there_is_not_run(timed):
    run = timed
    of = found(STUDY, run, _claims.DEEPER["wikitext-2"])
    assert of.verdict == "not run"
    assert "WikiText-2 was not part of this run" in of.reason
    assert "wikitext-2" not in kinds_of(run)
    assert "was not part" not in found(STUDY, run, _claims.DEEPER["sympy"]).reason


def test_a_run_without_any_text_is_not_run(tmp_path):
    with pytest.raises(NotRun, match="none of the texts wikitext-2 is on this machine"):
        carried_out(STUDY, replace(TINY, texts=("wikitext-2",)), tmp_path / "none")


def test_another_text_is_refused(config, tiny, tmp_path):
    depth_width.same_texts(config, tiny)
    with pytest.raises(CorpusError, match="sympy has changed"):
        depth_width.same_texts(replace(config, tokens=20_000), tiny)
    with Run.create(tmp_path / "other", study="depth-width", config={}) as run:
        run.keep("wikitext-2/sha256", lambda: np.zeros(32, np.uint8))
        run.keep("text/present", lambda: np.array([False, True]))
        with pytest.raises(CorpusError, match="wikitext-2 has changed"):
            STUDY.run(config, run, silent)


# verdicts


def losses(deep, shallow=1.0, *, rate=0.1, spread=0.001):
    """(shapes, rates, seeds): the first rate is best, the other one costs `rate`."""
    best = np.array([shallow, deep])[:, None] + spread * np.outer([1, -1], SEEDS)
    return np.stack([best, best + rate], 1)


def made(run, path, **kinds):
    """A copy of the run with these losses after the start, on both halves; other kinds gain nothing by depth."""
    named = {"wikitext": "wikitext-2", "deep": DEEP, "flat": FLAT}
    given = {named.get(name, name): values for name, values in kinds.items()}

    def change(name, step, value):
        if "/valid/" not in name:
            return value
        family, shape = name[:4], int(name.split(", ")[1][0]) - 1
        of = [given.get(kind, losses(1.0)) for kind in (TEXTS if family == "text" else TREES)]
        return np.concatenate([each[shape].flatten() for each in of]) + (5.0 if step == 0 else 0.0)

    return changed(run, path, change)


def judged(run, path, claim, **kinds):
    return found(STUDY, made(run, path, **kinds), claim).verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (losses(0.5), "holds"),
        (losses(0.985, rate=0.001), "only qualitative"),
        (losses(0.9, rate=0.2), "not above its control"),  # another rate changes more
        (losses(0.9, rate=0.1, spread=0.01), "undecided"),  # or as much, as far as seeds tell
        (losses(0.999, rate=0.0, spread=0.0001), "only qualitative"),
        (losses(0.95, spread=0.1), "undecided"),
        (losses(1.3), "fails"),
    ],
)
@pytest.mark.parametrize("kind", ["sympy", "wikitext", "deep"])
def test_deeper_must_beat_chance_and_another_rate(tiny, tmp_path, kind, values, verdict):
    claim = _claims.DEEPER[{"wikitext": "wikitext-2", "deep": DEEP}.get(kind, kind)]
    assert judged(tiny, tmp_path / "made", claim, **{kind: values}) == verdict


def test_the_best_shape_is_asked_on_every_data_set(tiny, tmp_path):
    everywhere = dict.fromkeys(("sympy", "wikitext", "deep"), losses(0.9))
    assert judged(tiny, tmp_path / "all", _claims.BEST, **everywhere) == "holds"
    assert judged(tiny, tmp_path / "one", _claims.BEST, **everywhere | {"deep": losses(1.2)}) == "only qualitative"
    assert judged(tiny, tmp_path / "none", _claims.BEST, **dict.fromkeys(everywhere, losses(1.2))) == "fails"


def test_shape_against_rate(tiny, tmp_path):
    large, small = losses(1.3, rate=0.1), losses(1.05, rate=0.4)
    for name, values, verdict in (("large", large, "holds"), ("small", small, "fails")):
        kinds = dict.fromkeys(("sympy", "wikitext", "deep"), values)
        assert judged(tiny, tmp_path / name, _claims.SHAPE, **kinds) == verdict


@pytest.mark.parametrize(
    ("claim", "kind", "control"), [(_claims.HIERARCHY, "deep", "flat"), (_claims.ORDER, "sympy", SHUFFLED)]
)
def test_gains_are_compared_with_data_without_hierarchy(tiny, tmp_path, claim, kind, control):
    gain, none = losses(0.5), losses(1.0)
    assert judged(tiny, tmp_path / "a", claim, **{kind: gain, control: none}) == "holds"
    assert judged(tiny, tmp_path / "b", claim, **{kind: gain, control: gain}) == "not above its control"
    assert judged(tiny, tmp_path / "c", claim, **{kind: none, control: gain}) == "fails"


def test_networks_that_learned_nothing_tell_nothing(tiny, tmp_path):
    idle = losses(9.0, 9.0)
    run = made(tiny, tmp_path / "idle", sympy=idle, deep=idle)
    for claim in (_claims.DEEPER["sympy"], _claims.BEST, _claims.SHAPE, _claims.HIERARCHY, _claims.ORDER):
        finding = found(STUDY, run, claim)
        assert finding.verdict == "not run"
        assert "1 layer learned nothing: their loss is 9.000 nats" in finding.reason
    some = made(tiny, tmp_path / "some", sympy=losses(9.0))
    assert "no deeper shape learned" in found(STUDY, some, _claims.BEST).reason
    assert "networks of 2 layers learned nothing" in found(STUDY, some, _claims.DEEPER["sympy"]).reason


def test_shuffled_text_need_not_be_learned(tiny, tmp_path):
    kinds = {"sympy": losses(0.5), SHUFFLED: losses(9.0, 9.0)}
    assert judged(tiny, tmp_path / "made", _claims.ORDER, **kinds) == "holds"


def test_no_seed_chooses_its_own_rate(tiny, tmp_path):
    """The last seed would be much better at the second rate, but the others are not."""
    values = losses(1.0, rate=0.1, spread=0.0)
    values[:, 1, 2] = 0.5
    sweep = Sweep(made(tiny, tmp_path / "made", sympy=values), "sympy")
    np.testing.assert_allclose(sweep.at_best(0)[2], 1.0)
    np.testing.assert_allclose(sweep.at_best(0)[:2], 1.1)  # to them it spoke for the second rate
    assert sweep.best_rate(0) == 1


def test_the_rate_is_not_chosen_on_what_is_judged(tiny, tmp_path):
    values = losses(1.0, spread=0.0)
    base = made(tiny, tmp_path / "base", sympy=values)

    def turned(name, step, value):
        return value[::-1].copy() if name.startswith("text") and name.endswith("judging") else value

    sweep = Sweep(changed(base, tmp_path / "turned", turned), SHUFFLED)
    chosen = np.array([sweep.ranked(0, seed)[0] for seed in range(3)])
    assert chosen.tolist() == [0, 0, 0]
    np.testing.assert_allclose(sweep.at_best(0), 1.1, atol=0.01)


def test_a_network_is_read_where_the_choosing_half_is_lowest(tiny, tmp_path):
    base = made(tiny, tmp_path / "base")
    last = int(base.steps("text, 1 layers/valid/judging")[-1])

    def later(name, step, value):
        worse = {"choosing": 1.0, "judging": -0.5}  # after the best point one half rises and the other falls
        return value + worse[name.rpartition("/")[2]] if "/valid/" in name and step == last else value

    sweep = Sweep(changed(base, tmp_path / "later", later), "sympy")
    np.testing.assert_allclose(sweep.at_best(0), 1.0, atol=0.01)


def test_networks_that_diverged_are_left_out_and_counted(tiny, tmp_path):
    base = made(tiny, tmp_path / "base", sympy=losses(0.5))

    def lost(name, step, value):
        if name == "text, 2 layers/diverged_at":
            value = np.array(value)
            value[:3] = 4  # the best rate of the deep shape on python
        return value

    run = changed(base, tmp_path / "lost", lost)
    sweep = Sweep(run, "sympy")
    assert sweep.diverged == 3
    np.testing.assert_allclose(sweep.at_best(1), 0.6, atol=0.01)  # the other rate
    finding = found(STUDY, run, _claims.DEEPER["sympy"])
    assert finding.details["networks left out"] == {"diverged on Python source": 3.0}
    for drawing in STUDY.draw(run):
        says_what_is_seen(drawing)


def test_the_caption_follows_the_numbers(tiny, tmp_path):
    def caption(name, **kinds):
        return STUDY.draw(made(tiny, tmp_path / name, **kinds))[0].caption

    assert "On Python source, 2 layers have a loss 0.5 ± " in caption("a", sympy=losses(0.5))
    assert "nats higher than 1 layer" in caption("b", sympy=losses(1.5))
    assert "On Python source, seeds do not tell 2 layers from 1 layer" in caption("c", sympy=losses(1.0))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": (2,)}, "layers must be at least 2 values that rise"),
        ({"tree_layers": (4, 2)}, "tree_layers must be at least 2 values that rise"),
        ({"rates": (1e-3, 1e-3)}, "rates must be at least 2 values that rise"),
        ({"texts": ("song",)}, "texts must be one of sympy, wikitext-2, wikitext-103, got 'song'"),
        ({"texts": ("sympy", "sympy")}, "texts must be values that differ"),
        ({"seeds": 2}, "seeds must be at least 3"),
        ({"branching": (4,)}, "branching must have two levels or more"),
        ({"rho": 1.0}, "rho must lie between 0 and 1"),
        ({"last_rate": 0.0}, "last_rate must be above 0"),
        ({"steps": 10}, "steps must be at least 20, got 10"),
        ({"parameters": 2_000, "vocabulary": 5_000}, "parameters must leave room for 1 layer beside .* got 2000"),
        ({"multiple": 3}, "multiple must be even"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        DepthWidthConfig(**changes)
