"""The study of Section 5: networks and measures against slow ones, verdicts, and that these follow the numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import carried_out, verdicts
from scipy.stats import spearmanr

from joma.data.samples import streams
from joma.models import JomaBlock
from joma.runs import Run
from joma.studies import _tree_findings as findings
from joma.studies import _tree_networks as net
from joma.studies import shallow_first
from joma.studies.contract import NotRun, silent
from joma.studies.drawing import house_style
from joma.studies.execute import judge, plain_config
from joma.theory.hierarchy import cooccurrence, root_rho
from joma.training import train_all

STUDY = shallow_first.STUDY
TINY = replace(
    STUDY.quick, classes=2, members=3, samples=800, block_steps=25, block_batch=4, decoder_steps=12, decoder_batch=8,
    width=8, context=4, points=5,
)  # fmt: skip
OF_DATA = {"pull-towards-a-token", "pull-towards-the-class"}
GOOD = {"holds", "holds as corrected"}


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


def test_one_finding_a_claim_and_no_empirical_one_without_control(run):
    found = judge(STUDY, run)
    assert [finding.claim for finding in found] == list(STUDY.claims)
    assert all(finding.control for finding in found)


def test_nothing_holds_of_an_untrained_network(run, tmp_path):
    stopped = rewritten(run, tmp_path / "stopped", lambda name, values: np.repeat(values[:1], len(values), 0))
    found = verdicts(STUDY, stopped)
    assert {name for name, verdict in found.items() if verdict in GOOD} <= OF_DATA
    assert found["bottom-up"] == "fails"


def test_nothing_holds_at_rate_zero(tmp_path):
    still = carried_out(
        STUDY, replace(TINY, block_rate=0.0, decoder_rate=0.0, block_steps=3, decoder_steps=3), tmp_path / "r"
    )
    assert {name for name, verdict in verdicts(STUDY, still).items() if verdict in GOOD} <= OF_DATA


def ideal(name, values):
    """What Section 5 would look like: siblings lead from the start, and attention at H peaks later the higher H is."""
    if name.split("/")[-1] not in ("attention", "weights", "says"):
        return values
    values = np.zeros_like(values)
    points = len(values)
    t = np.arange(points)[:, None]
    if name.endswith("says"):  # each level told from the next, one after the other
        steps = np.stack([(t[:, 0] > i * (points - 1) / 3) * 1.0 for i in (0, 1, 2)], -1)
        values[:, :, 0, :4] = -np.cumsum(np.concatenate([np.zeros((points, 1)), steps], 1), 1)[:, None]
    else:
        values[..., :4] = 1
        peaks = 1 + np.array([1, 2, 3]) * (points - 2) / 3
        rise = np.exp(-(((t - peaks) / 2) ** 2)) + np.array([0, 0, 0.3]) * (t == points - 1)
        values[:, :, 0, :3] += (rise - rise[0])[:, None]
        values[-1, :, 0, findings.ALONE] = 1.0
        values[:, :, 0, findings.ORDER] = 1.0
        values[..., findings.MOVED] = t[..., None] / points
    return values + 1e-6 * np.random.default_rng(0).normal(size=values.shape)


def test_a_record_as_the_paper_tells_it_holds(run, tmp_path):
    found = verdicts(STUDY, rewritten(run, tmp_path / "ideal", ideal))
    assert {name: verdict for name, verdict in found.items() if name not in OF_DATA and verdict != "holds"} == {}


def test_where_only_the_class_is_told_otherwise_it_holds_as_corrected(run, tmp_path):
    def change(name, values):
        values = ideal(name, values)
        if name in ("residual class/attention", "residual class/weights"):
            values[:, :, 0, :3] = values[:, :, 0, 2::-1]
        return values

    found = verdicts(STUDY, rewritten(run, tmp_path / "class", change))
    assert found["attention-first"] == found["weights-first"] == "holds as corrected"
    assert found["reaches-out"] == "only qualitative"


def test_siblings_that_lead_in_the_permuted_tree_as_well_prove_nothing(run, tmp_path):
    def change(name, values):
        values = ideal(name, values)
        if values.ndim == 4:
            values[:, :, 1] = values[:, :, 0]
        return values

    found = verdicts(STUDY, rewritten(run, tmp_path / "both", change))
    assert not {name for name, verdict in found.items() if name not in OF_DATA and verdict in GOOD}


def test_a_pull_in_proportion_to_co_occurrence_holds(run, tmp_path):
    even = rewritten(run, tmp_path / "even", lambda n, v: run.array("data/co-occurrence") if n.endswith("pull") else v)
    found = verdicts(STUDY, even)
    assert found["pull-towards-a-token"] == found["pull-towards-the-class"] == "holds"


def test_a_mean_that_few_pairs_carry_is_only_qualitative(run, tmp_path):
    def change(name, values):
        values = ideal(name, values)
        if values.ndim == 4:
            values[:, :, :, findings.ORDER] = 0
        return values

    found = verdicts(STUDY, rewritten(run, tmp_path / "few", change))
    assert {found[name] for name in ("attention-first", "weights-first", "attention-first-shared")} == {
        "only qualitative"
    }


def test_a_killed_run_goes_on_to_the_numbers_it_would_have_had(run, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def killed_at_the_third(ensembles, run, *, progress):
        for name, ensemble in ensembles.items():
            if name == findings.NETWORKS[2]:
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


def test_networks_that_diverge_are_left_out_and_counted(run, tmp_path):
    def one(name, values):
        values = values.copy()
        if name.startswith("decoder/") and name != "decoder/diverged_at":
            values[-1, 0] = np.nan
        elif name == "decoder/diverged_at":
            values[-1, 0] = 3
        return values

    for finding in judge(STUDY, rewritten(run, tmp_path / "one", one)):
        assert "; 1 networks diverged" in finding.measured
        assert "nan" not in finding.measured
    gone = rewritten(run, tmp_path / "all", lambda n, v: v if n.startswith("data/") or v.dtype == int else v * np.nan)
    assert {name for name, verdict in verdicts(STUDY, gone).items() if verdict in GOOD} <= OF_DATA


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
    x, target = net.token_batch(pool, 8, 3, [1, 0])
    tokens = x.shape[-1]
    query = torch.arange(tokens)
    assert (x[:, query, :, query] == 0).all()
    assert (x.gather(-1, target[..., None]) == 0).all()
    assert (target != query[:, None]).all()
    assert (x.sum(-1) >= 1).all()
    with_target, labels = net.class_batch(pool, 8, 3, [1, 0])
    assert (with_target.sum(-1) == x.sum(-1) + 1).all()
    assert labels.max() == 1
    alone = net.token_batch(pool, 8, 3, [0])
    assert torch.equal(alone[0][0], x[1])
    assert torch.equal(alone[1][0], target[1])


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
    assert net.between(lambda network: changed, start, trees)(None, [0])[0, 0, findings.MOVED].item() == 3.0


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
    setting = shallow_first._Setting(replace(STUDY.quick, samples=20_000, members=2))
    pull = shallow_first._pulls(setting)["class pull"].mean(0)
    assert torch.allclose(pull[:3] / pull[0], torch.ones(3, dtype=pull.dtype), atol=0.02)


def test_the_pull_towards_a_token_against_a_loop(pool):
    on = pool.on[0, :100].double()
    others = on.sum(-1, keepdim=True) - 1
    found = shallow_first._pull_to_tokens(on, others)
    m, l = 3, 4
    rows = on[on[:, m] > 0]
    pull = torch.zeros(20, dtype=torch.float64)
    for row in rows:
        n = row.sum() - 1
        for target in row.nonzero()[:, 0].tolist():
            if target != m and target != l and row[l]:
                pull += (torch.nn.functional.one_hot(torch.tensor(target), 20) - 1 / 20) / n
    torch.testing.assert_close(found[m, l], (pull / len(rows)).norm())
