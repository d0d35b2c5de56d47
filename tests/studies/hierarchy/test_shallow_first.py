"""The study of Section 5: networks and measures against slow ones, verdicts, and that these follow the numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from records import carried_out, found, verdicts
from scipy.stats import spearmanr

from joma.claims.contract import Finding, NotRun, silent
from joma.claims.execute import judge, plain_config
from joma.data.samples import streams
from joma.figures.style import house_style
from joma.models import JomaBlock
from joma.runs import Run
from joma.studies.hierarchy.shallow_first import STUDY, claims
from joma.studies.hierarchy.shallow_first import claims as tree_series
from joma.studies.hierarchy.shallow_first import networks as net
from joma.studies.hierarchy.shallow_first import run as shallow_first
from joma.theory.hierarchy import cooccurrence, root_rho
from joma.training import train_all

TINY = replace(
    STUDY.quick, classes=2, members=3, samples=800, block_steps=25, block_batch=4, decoder_steps=12, decoder_batch=8,
    width=8, context=4, points=5,
)  # fmt: skip
OF_DATA = {"pull-towards-a-token", "pull-towards-the-class"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return carried_out(STUDY, TINY, tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def pool():
    return net.draw_pool(net.uneven_tree(2, 0.9), 300, 40, 4, streams(0, range(2)))


def rewritten(run, path, change):
    """A copy of the run with every series passed through change(name, values over points)."""
    copy = Run.create(path, study=run.study, config=run.config, version=run.version)
    for name in run.names():
        for step, value in zip(run.steps(name), change(name, run.array(name)), strict=True):
            copy.append(name, int(step), value)
    return copy


def test_one_finding_a_claim_and_its_verdict_is_in_its_json(run):
    seen = judge(STUDY, run)
    assert [finding.claim for finding in seen] == list(STUDY.claims)
    for finding in seen:
        assert Finding.from_json(json.loads(json.dumps(finding.as_json()))).verdict == finding.verdict


def test_an_untrained_network_is_no_evidence(run, tmp_path):
    stopped = rewritten(run, tmp_path / "stopped", lambda name, values: np.repeat(values[:1], len(values), 0))
    assert {name for name, verdict in verdicts(STUDY, stopped).items() if verdict != "not run"} == OF_DATA


def test_at_rate_zero_nothing_was_learned(tmp_path):
    still = carried_out(
        STUDY, replace(TINY, block_rate=0.0, decoder_rate=0.0, block_steps=3, decoder_steps=3), tmp_path / "r"
    )
    assert {name for name, verdict in verdicts(STUDY, still).items() if verdict != "not run"} == OF_DATA


TRUE, PERMUTED = 0, 1
CHANCE = {name: np.log(20) * (1 if name == claims.DECODER else 20) for name in claims.NETWORKS} | {
    name: np.log(2) * 20 for name in ("bare class", "residual class")
}


def ideal(name, values):
    """What Section 5 would look like: siblings lead from the start, and attention at H peaks later the higher H is."""
    if name.endswith("train_loss"):
        return np.full_like(values, CHANCE[name.split("/")[0]] / 2)
    if name.split("/")[-1] not in ("attention", "weights", "says"):
        return values
    values = np.zeros_like(values)
    points = len(values)
    t = np.arange(points)[:, None]
    if name.endswith("says"):  # each level told from the next, one after the other
        steps = np.stack([(t[:, 0] > i * (points - 1) / 3) * 1.0 for i in (0, 1, 2)], -1)
        values[:, :, TRUE, :4] = -np.cumsum(np.concatenate([np.zeros((points, 1)), steps], 1), 1)[:, None]
    else:
        values[..., :4] = 1
        peaks = 1 + np.array([1, 2, 3]) * (points - 2) / 3
        rise = np.exp(-(((t - peaks) / 2) ** 2)) + np.array([0, 0, 0.3]) * (t == points - 1)
        values[:, :, TRUE, :3] += (rise - rise[0])[:, None]
        values[1, :, PERMUTED, :3] += 1e-3  # all heights peak together
        values[-1, :, TRUE, tree_series.ALONE] = 1.0
        values[:, :, TRUE, tree_series.ORDER] = 1.0
        values[..., tree_series.MOVED] = t[..., None] / points
    return values + 1e-6 * np.random.default_rng(0).normal(size=values.shape)


def spoiled(run, path, *networks, spoil, what=("attention", "weights", "says")):
    """The ideal record with `spoil(values)` applied, in place, to what was measured on these networks."""

    def change(name, values):
        values = ideal(name, values)
        network, _, measured = name.partition("/")
        if network in networks and measured in what:
            spoil(values)
        return values

    return verdicts(STUDY, rewritten(run, path, change))


def reversed_heights(values):
    values[:, :, TRUE, :3] = values[:, :, TRUE, 2::-1]


def as_permuted(values):
    values[:, :, TRUE] = values[:, :, PERMUTED]


def test_a_record_as_the_paper_tells_it_holds(run, tmp_path):
    seen = verdicts(STUDY, rewritten(run, tmp_path / "ideal", ideal))
    assert {name: verdict for name, verdict in seen.items() if name not in OF_DATA and verdict != "holds"} == {}


START = ("attention-first", "weights-first")
TOKEN, CLASS = "residual token", "residual class"


def test_where_only_the_class_is_told_otherwise_it_holds_as_corrected(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", CLASS, spoil=reversed_heights)
    assert {seen[name] for name in START} == {"holds as corrected"}
    assert seen["reaches-out"] == "only qualitative"


def test_where_only_the_token_is_told_otherwise_the_class_alone_does_not_carry_it(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", TOKEN, spoil=reversed_heights)
    assert {seen[name] for name in (*START, "reaches-out")} == {"only qualitative"}


def test_the_opposite_order_fails(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", *claims.NETWORKS, spoil=reversed_heights)
    first = (*START, "attention-first-shared", "attention-first-decoder", "weights-first-decoder", "reaches-out")
    assert {seen[name] for name in first} == {"fails"}


def test_blocks_without_the_residual_have_no_say(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", "bare token", "bare class", spoil=reversed_heights)
    assert {verdict for name, verdict in seen.items() if name not in OF_DATA} == {"holds"}


NEEDS = {
    claims.SHARED: ("attention-first-shared",),
    claims.DECODER: ("attention-first-decoder", "weights-first-decoder", "bottom-up"),
    TOKEN: (*START, "reaches-out", "weak-pairs-in-the-end", "not-picked-up"),
    CLASS: (*START, "reaches-out", "weak-pairs-in-the-end", "not-picked-up"),
    "bare token": (),
    "bare class": (),
}


@pytest.mark.parametrize("network", NEEDS)
def test_claims_on_a_network_that_did_not_learn_are_not_run(run, tmp_path, network):
    def change(name, values):
        return np.full_like(values, 0.995 * CHANCE[network]) if name == f"{network}/train_loss" else ideal(name, values)

    seen = rewritten(run, tmp_path / "r", change)
    assert {name for name, verdict in verdicts(STUDY, seen).items() if verdict == "not run"} == set(NEEDS[network])
    for finding in judge(STUDY, seen):
        if finding.verdict == "not run":
            assert finding.command == "joma verify shallow-first --scale paper"
            assert "networks learned their task" in finding.reason


def test_what_the_permuted_tree_shows_as_well_proves_nothing(run, tmp_path):
    def both(values):
        values[:, :, PERMUTED] = values[:, :, TRUE] + 1e-6 * np.random.default_rng(1).normal(size=values[:, :, 0].shape)

    seen = spoiled(run, tmp_path / "r", *claims.NETWORKS, spoil=both)
    others = {name: verdict for name, verdict in seen.items() if name not in OF_DATA}
    assert others.pop("bottom-up") == "not run"  # it tells no height from the next
    assert set(others.values()) == {"not above its control"}


def test_a_mean_that_few_pairs_carry_is_only_qualitative(run, tmp_path):
    def unordered(values):
        values[:, :, :, tree_series.ORDER] = 1e-6 * np.random.default_rng(1).normal(size=values.shape[:3])

    seen = spoiled(run, tmp_path / "all", *claims.NETWORKS, spoil=unordered)
    first = (*START, "attention-first-shared", "attention-first-decoder", "weights-first-decoder")
    assert {seen[name] for name in first} == {"only qualitative"}
    seen = spoiled(run, tmp_path / "class", CLASS, spoil=unordered)
    assert {seen[name] for name in START} == {"holds as corrected"}
    seen = spoiled(run, tmp_path / "token", TOKEN, spoil=unordered)
    assert {seen[name] for name in START} == {"only qualitative"}


def test_a_small_lead_is_only_qualitative_and_an_unsteady_one_undecided(run, tmp_path):
    def small(values):
        values[:, :, TRUE, :3] = 1 + 0.1 * (values[:, :, TRUE, :3] - 1)

    def unsteady(values):
        values[1:, :, TRUE, 0] += np.array([-1, 0, 1])

    first = (*START, "attention-first-shared", "attention-first-decoder", "weights-first-decoder")
    seen = spoiled(run, tmp_path / "small", *claims.NETWORKS, spoil=small)
    assert {seen[name] for name in first} == {"only qualitative"}
    seen = spoiled(run, tmp_path / "unsteady", *claims.NETWORKS, spoil=unsteady)
    assert {seen[name] for name in first} == {"undecided"}


@pytest.mark.parametrize(
    ("claim", "column"), [("weak-pairs-in-the-end", claims.FAR), ("not-picked-up", tree_series.ALONE)]
)
@pytest.mark.parametrize(
    ("by", "verdict"),
    [
        ([0.07, 0.3, -0.2], "undecided"),
        ([0.03, 0.031, 0.029], "only qualitative"),
        ([0.001, -0.001, 0.0], "not above its control"),
        ([-0.2, -0.21, -0.19], "fails"),
        ([0.2, 0.21, 0.19], "holds"),
    ],
)
def test_attention_in_the_end_is_judged_by_its_interval(run, tmp_path, claim, column, by, verdict):
    def spoil(values):
        values[-1, :, TRUE, column] = values[-1, :, PERMUTED, column].mean() + np.array(by)

    assert spoiled(run, tmp_path / "both", TOKEN, CLASS, spoil=spoil)[claim] == verdict
    for network in (TOKEN, CLASS):  # either alone keeps it from holding
        one = spoiled(run, tmp_path / network, network, spoil=spoil)[claim]
        assert one == {"holds": "holds", "undecided": "undecided"}.get(verdict, "only qualitative")


def test_attention_must_reach_out_height_by_height(run, tmp_path):
    def middle_first(values):
        values[:, :, TRUE, :2] = values[:, :, TRUE, 1::-1]

    def flat_siblings(values):
        values[:, :, TRUE, 0] = values[:, :, PERMUTED, 0]

    def flat_far(values):
        values[:, :, TRUE, claims.FAR] = values[:, :, PERMUTED, claims.FAR]
        values[-1, :, TRUE, claims.FAR] += 1e-5 * np.array([2, 1, -1])  # the peak is late, and chance

    for network in (TOKEN, CLASS):
        seen = spoiled(run, tmp_path / f"middle {network}", network, spoil=middle_first)
        assert seen["reaches-out"] == "only qualitative"
        for spoil in (flat_siblings, flat_far):
            seen = spoiled(run, tmp_path / f"{spoil.__name__} {network}", network, spoil=spoil)
            assert seen["reaches-out"] == "not above its control"


def test_a_rise_that_chance_may_hide_leaves_it_undecided(run, tmp_path):
    def unsteady(values):
        values[:, :, TRUE, 0] = 1 + (values[:, :, TRUE, 0] - 1) * np.array([2.0, 0.5, 0.1])

    assert spoiled(run, tmp_path / "r", TOKEN, spoil=unsteady)["reaches-out"] == "undecided"


def test_a_delay_that_the_permuted_tree_has_too_proves_nothing(run, tmp_path):
    def lower(values):
        values[:, :, PERMUTED, :3] = 1 + 0.5 * (values[:, :, TRUE, :3] - 1)

    seen = spoiled(run, tmp_path / "r", TOKEN, CLASS, spoil=lower)
    assert seen["reaches-out"] == "not above its control"


def test_peaks_at_any_time_are_undecided(run, tmp_path):
    def anywhere(values):
        for member, point in enumerate((1, 3, len(values) - 1)):
            values[:, member, TRUE, claims.FAR] = 1.1
            values[point, member, TRUE, claims.FAR] = 1.9

    seen = spoiled(run, tmp_path / "r", TOKEN, CLASS, spoil=anywhere)
    assert seen["reaches-out"] == "undecided"


def test_levels_must_be_learned_from_below(run, tmp_path):
    def in_order(*order):
        def spoil(values):
            contrast = -np.diff(values[:, :, TRUE, :4], axis=-1)[..., list(order)]
            values[:, :, TRUE, 1:4] = -np.cumsum(contrast, -1)

        return spoil

    def verdict(name, spoil):
        return spoiled(run, tmp_path / name, claims.DECODER, spoil=spoil, what=("says",))["bottom-up"]

    assert verdict("same", in_order(0, 1, 2)) == "holds"
    assert verdict("top down", in_order(2, 1, 0)) == "fails"

    def middle_last(values):
        t = np.arange(len(values))
        contrast = np.stack([t >= 1, t >= len(t) - 1, t >= len(t) - 2], -1).astype(float)
        values[:, :, TRUE, 1:4] = -np.cumsum(contrast, -1)[:, None]

    assert verdict("middle last", middle_last) == "only qualitative"
    assert verdict("untold", as_permuted) == "not run"
    for untold in (0, 2):  # one end alone is not told from the next level

        def half(values, untold=untold):
            contrast = -np.diff(values[:, :, TRUE, :4], axis=-1)
            contrast[..., untold] = 1e-6 * np.array([1, 0, -1])
            values[:, :, TRUE, 1:4] = -np.cumsum(contrast, -1)

        assert verdict(f"half {untold}", half) == "not run"


def test_levels_learned_at_any_time_are_undecided(run, tmp_path):
    def unsteady(values):
        late = len(values) - 1
        for member, (low, high) in enumerate([(1, late), (late, 1), (2, 2)]):
            t = np.arange(len(values))
            contrast = np.stack([t >= low, t >= 2, t >= high], -1).astype(float)
            values[:, member, TRUE, 1:4] = -np.cumsum(contrast, -1)

    assert spoiled(run, tmp_path / "r", claims.DECODER, spoil=unsteady, what=("says",))["bottom-up"] == "undecided"


# The pull of the data, by height: siblings, H = 2, H = 3, through the root
SMALL = 1e-3 * np.array([1.0, 0.0, -1.0])[:, None]  # members differ a little


def pulled(run, path, pull, permuted=(1.0, 1.0, 1.0, 1.0), spread=SMALL):
    """Verdicts where both pulls are these, beside a co-occurrence of 1, 0.9, 0.8, 0.3."""
    rows = {"co-occurrence": (1.0, 0.9, 0.8, 0.3), "pull": pull, "permuted": permuted}

    def change(name, values):
        row = next((row for end, row in rows.items() if name.startswith("data/") and name.endswith(end)), None)
        return values if row is None else (np.array(row) + spread * np.arange(4))[None]

    seen = verdicts(STUDY, rewritten(run, path, change))
    return seen["pull-towards-a-token"], seen["pull-towards-the-class"]


@pytest.mark.parametrize(
    ("pull", "of_token", "of_class"),
    [
        ((1.0, 0.9, 0.8, 0.3), "holds", "holds"),  # as co-occurrence
        ((1.0, 0.95, 0.9, 0.3), "only qualitative", "only qualitative"),  # it falls, more slowly
        ((1.0, 1.0, 1.0, 0.1), "not above its control", "holds as corrected"),
        ((1.0, 1.0, 1.0, 1.0), "not above its control", "not above its control"),  # as in a permuted tree
        ((1.0, 1.1, 1.2, 0.1), "fails", "only qualitative"),  # not the same at every height, smaller through the root
        ((1.0, 0.8, 0.9, 0.3), "only qualitative", "only qualitative"),  # not from height to height
    ],
)
def test_the_pull_is_judged_by_its_form(run, tmp_path, pull, of_token, of_class):
    assert pulled(run, tmp_path / "r", pull) == (of_token, of_class)


def test_a_pull_that_falls_in_the_permuted_tree_too_proves_nothing(run, tmp_path):
    falls = (1.0, 0.9, 0.8, 0.3)
    assert pulled(run, tmp_path / "r", falls, permuted=falls) == ("not above its control",) * 2


def test_a_level_pull_in_the_permuted_tree_is_no_correction(run, tmp_path):
    """Level below the root and through it: what every permuted tree looks like."""
    level = (1.0, 1.0, 1.0, 0.1)
    assert pulled(run, tmp_path / "r", level, permuted=level)[1] == "not above its control"


def test_a_pull_that_few_sequences_leave_open_is_undecided(run, tmp_path):
    assert pulled(run, tmp_path / "r", (1.0, 0.9, 0.8, 0.8), spread=200 * SMALL) == ("undecided",) * 2


def test_a_killed_run_goes_on_to_the_numbers_it_would_have_had(run, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def killed_at_the_third(ensembles, run, *, progress):
        for name, ensemble in ensembles.items():
            if name == claims.NETWORKS[2]:
                raise Killed
            train_all({name: ensemble}, run, progress=progress)

    again = Run.create(tmp_path / "again", study=STUDY.name, config=plain_config(TINY), version=STUDY.version)
    with monkeypatch.context() as patched:
        patched.setattr(shallow_first, "train_all", killed_at_the_third)
        with pytest.raises(Killed):
            STUDY.run(TINY, again, silent)
    STUDY.run(TINY, again, silent)
    assert again.names() == run.names()
    for name in run.names():
        np.testing.assert_array_equal(again.array(name), run.array(name), err_msg=name)


@pytest.mark.parametrize("lost", ["diverged_at", "train_loss"])
def test_networks_that_are_lost_are_left_out_and_counted(run, tmp_path, lost):
    def one(name, values):
        values = ideal(name, values).copy()
        if name == f"decoder/{lost}":
            values[-1, 0] = 3 if lost == "diverged_at" else np.log(20)
        elif name.startswith("decoder/") and values.ndim == 4:
            values[1:, 0, TRUE] = -50.0  # would turn every verdict
        return values

    spoilt = rewritten(run, tmp_path / "one", one)
    for claim in (claims.TRANSFORMER, claims.NODES, claims.BOTTOM_UP):
        finding = found(STUDY, spoilt, claim)
        why = "diverged" if lost == "diverged_at" else "did not learn"
        assert finding.verdict == "holds"
        assert finding.details["networks left out"] == {why: 1.0}
        assert f"networks left out: {why} 1" in finding.measured


def test_what_is_not_a_number_is_left_out(run, tmp_path):
    def one(name, values):
        values = ideal(name, values).copy()
        if values.ndim == 4:
            values[-1, 0] = np.nan
        return values

    spoilt = rewritten(run, tmp_path / "one", one)
    assert {verdict for name, verdict in verdicts(STUDY, spoilt).items() if name not in OF_DATA} == {"holds"}
    gone = rewritten(run, tmp_path / "all", lambda n, v: ideal(n, v) * (np.nan if v.ndim == 4 else 1))
    assert {name for name, verdict in verdicts(STUDY, gone).items() if verdict != "not run"} == OF_DATA
    with house_style():
        assert len(STUDY.draw(gone)) == 2


def test_one_member_decides_nothing(run, tmp_path):
    def alone(name, values):
        values = ideal(name, values).copy()
        if name.endswith("diverged_at"):
            values[-1, 1:] = 3
        return values

    seen = verdicts(STUDY, rewritten(run, tmp_path / "r", alone))
    assert {verdict for name, verdict in seen.items() if name not in OF_DATA} == {"undecided"}


def test_figures_are_drawn(run):
    with house_style():
        assert [drawing.name for drawing in STUDY.draw(run)] == ["attention-by-height", "order-of-learning"]


def test_without_a_gpu_the_paper_scale_says_how_to_run_it(run):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(NotRun, match="joma verify shallow-first --scale paper"):
        STUDY.run(STUDY.paper, run, silent)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"classes": 1}, "at least 2"), ({"rho": 1.0}, "between 0 and 1"), ({"context": 29}, "two of the 30 tokens"),
     ({"samples": 10}, "samples must be")],
)  # fmt: skip
def test_bad_configs_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(STUDY.quick, **changes)


def test_pool_leaves_out_what_it_asks_for(pool):
    tokens = pool.on.shape[-1]
    assert (pool.on.sum(-1) >= net.FEWEST).all()
    assert pool.on.gather(-1, pool.left_out[..., None]).all()
    assert (pool.reading != pool.left_out[..., None]).all()
    assert (pool.reading[..., -1] < tokens).all()
    read = torch.nn.functional.one_hot(pool.reading, tokens + 1).sum(-2)[..., :tokens]
    assert (read <= pool.on).all()  # each once, and only what is on
    member = torch.arange(2)[:, None, None]
    assert pool.on[member, pool.with_query, torch.arange(tokens)[:, None]].all()


def test_batches_hide_the_query_and_the_target(pool):
    x, target = (part[0] for part in net.token_batches(pool, 8, range(3, 4), [1, 0]))
    tokens = x.shape[-1]
    query = torch.arange(tokens)
    assert (x[:, query, :, query] == 0).all()
    assert (x.gather(-1, target[..., None]) == 0).all()
    assert (target != query[:, None]).all()
    assert (x.sum(-1) >= 1).all()
    with_target, labels = (part[0] for part in net.class_batches(pool, 8, range(3, 4), [1, 0]))
    assert (with_target.sum(-1) == x.sum(-1) + 1).all()
    assert labels.max() == 1
    alone = [part[0] for part in net.token_batches(pool, 8, range(3, 4), [0])]
    assert torch.equal(alone[0][0], x[1])
    assert torch.equal(alone[1][0], target[1])


@pytest.mark.parametrize("batches", [net.token_batches, net.class_batches, net.decoder_batches])
def test_many_steps_at_once_are_those_of_one_at_a_time(pool, batches):
    chosen = pool.with_query.shape[-1]
    last = chosen // 8 + 2  # past the end, where turns begin anew
    whole = batches(pool, 8, range(last), [1, 0])
    for step in range(last):
        for together, alone in zip(whole, batches(pool, 8, range(step, step + 1), [1, 0]), strict=True):
            assert torch.equal(together[step], alone[0])
    turn = torch.arange((last - 1) * 8, last * 8)
    read, left_out = net.decoder_batches(pool, 8, range(last - 1, last), [1, 0])
    assert torch.equal(read[0], pool.reading[[1, 0]][:, turn % pool.on.shape[1]])
    assert torch.equal(left_out[0], pool.left_out[[1, 0]][:, turn % pool.on.shape[1]])


@pytest.mark.parametrize("residual", [False, True])
def test_blocks_are_those_of_eq_1(residual):
    tokens, nodes = 5, 3
    blocks = net.QueryBlocks([4, 5], tokens, nodes, residual=residual).double()
    x = torch.rand(2, tokens, 7, tokens, dtype=torch.float64)
    zero = torch.zeros(7, dtype=torch.long)
    torch.testing.assert_close(blocks(x), JomaBlock.forward(blocks, x, zero))
    shared = net.SharedBlock([4, 5], tokens).double()
    for query in range(tokens):
        theirs = JomaBlock.forward(shared, x[:, query], torch.full((7,), query))
        torch.testing.assert_close(shared(x)[:, query], theirs)


def test_pairs_against_plain_loops():
    tree = net.uneven_tree(2, 0.9)
    heights = torch.stack([tree.ancestor_heights(), tree.permuted(streams(1, [0])[0]).ancestor_heights()])[None]
    values = torch.rand(1, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = net.Pairs(heights, 4)
    by_height, alone, order = np.zeros(4), 0.0, 0.0
    for table in heights[0].numpy():
        sibling = (table == 1).any(1)
        both = [(m, l) for m in range(20) for l in range(20) if sibling[m] and sibling[l] and m != l]
        for height in range(1, 5):
            by_height[height - 1] += np.mean([values[0, m, l] for m, l in both if table[m, l] == height]) / 2
        below = [(m, l) for m, l in both if table[m, l] < 4]
        order += spearmanr([values[0, m, l] for m, l in below], [-table[m, l] for m, l in below]).statistic / 2
        for height in (2, 3):
            far = [(m, l) for m in range(20) for l in range(20) if sibling[m] and table[m, l] == height]
            alone += (np.mean([values[0, m, l] for m, l in far if not sibling[l]])
                      - np.mean([values[0, m, l] for m, l in far if sibling[l]])) / 4  # fmt: skip
    np.testing.assert_allclose(pairs.by_height(values)[0], by_height)
    np.testing.assert_allclose(pairs.alone(values)[0], alone)
    np.testing.assert_allclose(pairs.order(values)[0], order)
    assert pairs.order(0 * values).item() == 0  # ties order nothing


def test_movement_leaves_out_the_diagonal():
    start = torch.zeros(1, 20, 20)
    trees = [net.Pairs(net.uneven_tree(2, 0.9).ancestor_heights()[None, None], 4)]
    changed = 3.0 - 2.0 * torch.eye(20)[None]
    assert net.between(lambda network: changed, start, trees)(None, [0])[0, 0, tree_series.MOVED].item() == 3.0


def test_attention_on_a_sequence_of_all_tokens():
    ratio = net.attention_ratio(torch.randn(2, 6, 6))
    torch.testing.assert_close(ratio.sum(-1), torch.full((2, 6), 5.0))
    assert (ratio.diagonal(dim1=1, dim2=2) == 0).all()


def test_the_tree_has_the_co_occurrence_of_theorem_5():
    tree = net.uneven_tree(3, 0.9)
    on = tree.sample(200_000, generator=torch.Generator().manual_seed(0)).on.double()
    both = on.mT @ on / on.sum(0)
    heights = tree.ancestor_heights()
    rho0 = root_rho([1 / 3] * 3, [0.05, 0.95, 0.95])
    for height in (1, 2, 3):
        assert abs(both[heights == height].mean() - cooccurrence(0.9, rho0, 4, height)) < 0.003


def test_the_pull_towards_the_class_does_not_depend_on_height():
    """P(l, m | class) = (1 + rho^2H - 2 R_class)/4: what depends on H is the same in every class, so it drops out."""
    setting = shallow_first.Setting(replace(STUDY.quick, samples=20_000, members=2))
    pull = shallow_first.pulls(setting)["class pull"].mean(0)
    assert torch.allclose(pull[:3] / pull[0], torch.ones(3, dtype=pull.dtype), atol=0.02)


def test_the_pull_towards_a_token_against_a_loop(pool):
    on = pool.on[0, :100].double()
    others = on.sum(-1, keepdim=True) - 1
    found = shallow_first.pull_to_tokens(on, others)
    m, l = 3, 4
    rows = on[on[:, m] > 0]
    pull = torch.zeros(20, dtype=torch.float64)
    for row in rows:
        n = row.sum() - 1
        for target in row.nonzero()[:, 0].tolist():
            if target != m and target != l and row[l]:
                pull += (torch.nn.functional.one_hot(torch.tensor(target), 20) - 1 / 20) / n
    torch.testing.assert_close(found[m, l], (pull / len(rows)).norm())
