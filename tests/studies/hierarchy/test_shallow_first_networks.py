"""The study of Section 5: its sequences, networks and measures against slow ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from joma.data.samples import streams
from joma.models import JomaBlock
from joma.studies.hierarchy.shallow_first import run as net
from joma.studies.hierarchy.shallow_first import study as claims
from joma.studies.hierarchy.shallow_first.study import STUDY
from joma.theory.hierarchy import cooccurrence, root_rho


@pytest.fixture(scope="module")
def pool():
    return net.draw_pool(net.uneven_tree(2, 0.9), 300, 40, 4, streams(0, range(2)))


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


def test_tokens_of_a_shallow_latent_are_as_frequent_and_independent():
    draw = lambda often, size, steps, members: net.shallow_batches(
        often, lambda step, member: streams(0, [member], step)[0], size, steps, members
    )
    often = 0.3 + 0.6 * torch.rand(2, 12, 12, generator=torch.Generator().manual_seed(0)) * (1 - torch.eye(12))
    often = often * (1 - torch.eye(12))
    x, target = draw(often, 4000, range(2), [1, 0])
    again = draw(often, 4000, range(1, 2), [0])
    assert torch.equal(again[0][0, 0], x[1, 1])
    assert torch.equal(again[1][0, 0], target[1, 1])
    assert (x.gather(-1, target[..., None]) == 0).all()
    asked = torch.nn.functional.one_hot(target[0], 12).float()
    on, wanted = x[0] + asked, often[[1, 0]]
    assert on.mean(2).diagonal(dim1=1, dim2=2).max() == 0  # a query is not beside itself
    assert torch.allclose(on.mean(2), wanted, atol=0.04)
    both = torch.einsum("mqsi,mqsj->mqij", on, on) / 4000
    assert ((both - wanted[..., None] * wanted[:, :, None]) * (1 - torch.eye(12))).abs().max() < 0.05
    even = (on / on.sum(-1, keepdim=True)).mean(2)
    assert torch.allclose(asked.mean(2), even, atol=0.03)  # any token that is there may be asked for
    assert (draw(0 * often, 50, range(1), [0])[0].sum(-1) == 1).all()  # two are there even so


def test_tokens_of_a_shallow_latent_come_as_often_as_in_the_tree():
    setting = net.Setting(STUDY.quick.__class__(classes=2, members=2, samples=100))
    on = setting.pool.on
    for member, m, other in ((0, 3, 4), (1, 12, 3), (0, 5, 19)):
        beside = on[member][on[member, :, m]][:, other].float().mean()
        assert torch.isclose(setting.often[member, m, other], beside)
    assert setting.often.diagonal(dim1=1, dim2=2).max() == 0


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
    assert net.between(lambda network: changed, start, trees)(None, [0])[0, 0, claims.MOVED].item() == 3.0


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
    setting = net.Setting(replace(STUDY.quick, samples=20_000, members=2))
    pull = net.pulls(setting)["class pull"].mean(0)
    assert torch.allclose(pull[:3] / pull[0], torch.ones(3, dtype=pull.dtype), atol=0.02)


def test_the_pulls_of_the_data_against_loops():
    """P(l|m), and E[(1[class of m] - 1/D) x_l | m], over all sequences."""
    config = replace(STUDY.quick, classes=2, samples=200, members=2, context=4)
    setting = net.Setting(config)
    found, matrices = net.pulls(setting), torch.zeros(2, 2, 20, 20, dtype=torch.float64)
    for member, m in np.ndindex(2, 20):
        on, labels = setting.pool.on[member].double(), setting.pool.labels[member]
        rows = on[:, m] > 0
        matrices[0, member, m] = on[rows].mean(0)
        matrices[1, member, m] = (((labels[rows] == m // 10).double() - 0.5)[:, None] * on[rows]).mean(0)
    for name, values in zip(("co-occurrence", "class pull"), matrices, strict=True):
        torch.testing.assert_close(found[name], setting.trees[0].by_height(values))


def test_the_pull_towards_a_token_against_a_loop(pool):
    on = pool.on[0, :100].double()
    others = on.sum(-1, keepdim=True) - 1
    found = net.pull_to_tokens(on, others)
    m, l = 3, 4
    rows = on[on[:, m] > 0]
    pull = torch.zeros(20, dtype=torch.float64)
    for row in rows:
        n = row.sum() - 1
        for target in row.nonzero()[:, 0].tolist():
            if target != m and target != l and row[l]:
                pull += (torch.nn.functional.one_hot(torch.tensor(target), 20) - 1 / 20) / n
    torch.testing.assert_close(found[m, l], (pull / len(rows)).norm())
