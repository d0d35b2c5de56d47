"""HBLT against the theory of co-occurrence, Table 1's generator against its definition, one stream a member."""

from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals
from torch.utils._python_dispatch import TorchDispatchMode

from joma.data.hierarchy import HBLT
from joma.data.latent_sets import TABLE1, LatentSets
from joma.data.samples import streams, write_sequences
from joma.theory import hierarchy as theory


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers(seed, *shape):
    return torch.rand(*shape, generator=seeded(seed), dtype=torch.float64)


def together(on):
    seen = on.double()
    return seen.mT @ seen / on.shape[-2]


def errors_off(on, both):
    gap, error = together(on) - both, (both * (1 - both) / on.shape[-2]).clamp(min=0).sqrt()
    assert (gap[error < 1e-9].abs() < 1e-9).all()
    return (gap / error)[error >= 1e-9]


# --- HBLT ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "branching", "rho", "classes"),
    [
        (1, 4, 0.3, 3),
        (2, 2, 0.9, 1),
        (2, (2, 3), -0.7, 2),
        (3, 2, [0.95, 0.4], 4),
        (3, (1, 2, 3), 0.0, 3),
        (4, (2, 1, 2, 2), [[0.9, -0.5, 0.7], [0.2, 1.0, -1.0]], 2),
        (3, 2, (2 * numbers(9, 12) - 1).tolist(), 5),
    ],
)
def test_tokens_appear_together_as_the_sum_over_latents_says(depth, branching, rho, classes):
    widths = torch.cumprod(torch.tensor([branching] * depth if isinstance(branching, int) else branching), 0)
    weights = numbers(1, classes)
    p0, p_zero = weights / weights.sum(), numbers(2, int(widths[0]), classes)
    tree = HBLT(depth, branching, rho, p0, p_zero)
    members = tuple(torch.tensor(rho).shape[:-1])
    assert tree.members == members
    per_edge = torch.tensor(rho, dtype=torch.float64)
    if per_edge.ndim and per_edge.shape[-1] == depth - 1:
        per_edge = per_edge.repeat_interleave(widths[1:], -1)
    truth = theory.enumerate_tree(depth, branching, per_edge, p0, p_zero)
    sample = tree.sample((*members, 40_000), generator=seeded(3))
    off = errors_off(sample.on, truth.both)
    assert off.abs().max() < 4.5
    assert torch.equal(tree.ancestor_heights(), truth.ancestor.expand(*members, -1, -1))
    assert sample.labels.unique().tolist() == list(range(classes))


@pytest.mark.parametrize(("depth", "branching", "rho"), [(3, 4, 0.8), (6, 2, 0.95), (5, (2, 1, 3, 2, 2), -0.9)])
def test_theorem_5_holds_for_sampled_trees_and_a_wrong_rho_is_seen(depth, branching, rho):
    p0, p_zero = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.9, 0.4, 0.6], dtype=torch.float64)
    tree = HBLT(depth, branching, rho, p0, p_zero)
    on = tree.sample(30_000, generator=seeded(4)).on
    heights = tree.ancestor_heights()

    def off(rho):
        rho0, tau = theory.root_rho(p0, p_zero), 2 * p_zero - 1
        given = theory.cooccurrence(rho, rho0, depth, torch.arange(depth))
        given = torch.cat([given, theory.root_cooccurrence(rho, depth, p0, tau, tau)[None]])[heights]
        return errors_off(on, given * (1 - rho ** (depth - 1) * rho0) / 2)

    assert off(rho).abs().max() < 5
    assert off(rho * 0.9).abs().max() > 9


def test_latents_follow_their_parents_and_the_class():
    tree = HBLT.one_per_class(10, (2, 5), [1.0, 0.8, 0.6])
    sample = tree.sample((3, 20_000), generator=seeded())
    low, top = sample.latents
    assert tree.level_names == ("height 1", "height 2")
    assert [x.shape for x in (low, top, sample.on)] == [(3, 20_000, n) for n in (20, 10, 100)]
    assert torch.equal(top, torch.nn.functional.one_hot(sample.labels, 10).bool())  # the first edge is certain
    copied = (low == top.repeat_interleave(2, -1)).double().mean((0, 1))
    torch.testing.assert_close(copied, torch.full((20,), 0.9, dtype=torch.float64), atol=0.006, rtol=0)
    copied = (sample.on == low.repeat_interleave(5, -1)).double().mean((0, 1))
    torch.testing.assert_close(copied, torch.full((100,), 0.8, dtype=torch.float64), atol=0.008, rtol=0)
    noisy = HBLT.one_per_class(10, (2, 5), 0.8).sample(60_000, generator=seeded())
    own = noisy.latents[1].gather(-1, noisy.labels[:, None])
    assert float(own.double().mean()) == pytest.approx(0.9, abs=0.006)


def test_certain_edges_copy_or_negate():
    for rho, same in ((1.0, True), (-1.0, False)):
        sample = HBLT(2, 2, rho, [0.5, 0.5], [0.3, 0.8]).sample(500, generator=seeded())
        assert ((sample.on == sample.latents[0].repeat_interleave(2, -1)) == same).all()


def test_classes_come_as_often_as_they_should_and_impossible_ones_never():
    p0 = torch.tensor([[0.0, 0.7, 0.3, 0.0], [0.25, 0.25, 0.5, 0.0]], dtype=torch.float64)
    labels = HBLT(1, 1, 1.0, p0, torch.zeros(4, dtype=torch.float64)).sample((2, 50_000), generator=seeded()).labels
    seen = torch.stack([row.bincount(minlength=4) for row in labels]) / 50_000
    torch.testing.assert_close(seen.double(), p0, atol=0.01, rtol=0)
    assert (seen[p0 == 0] == 0).all()


def test_the_sequence_holds_the_tokens_that_are_on_at_its_end():
    tree = HBLT.one_per_class(4, (2, 3), 0.7, length=30, vocabulary=50)
    sample = tree.sample((5, 7), generator=seeded())
    assert (tree.pad, sample.tokens.shape, sample.tokens.dtype) == (49, (5, 7, 30), torch.int64)
    for row, on in zip(sample.tokens.reshape(-1, 30), sample.on.reshape(-1, 24), strict=True):
        ids = on.nonzero().flatten().tolist()
        assert row.tolist() == [49] * (30 - len(ids)) + ids


def test_a_tree_may_branch_differently_at_every_node():
    tree = HBLT(3, [2, [2, 1], [2, 1, 1]], 0.9, [1.0], [0.5])
    assert tree.ancestor_heights()[0].tolist() == [0, 1, 2, 3]
    assert tree.ancestor_heights().tolist() == tree.ancestor_heights().mT.tolist()


def test_a_permuted_tree_draws_the_same_leaves_under_other_names():
    tree = HBLT.one_per_class(3, (2, 4), 0.9)
    other = tree.permuted(seeded(5))
    before, after = (t.sample(200, generator=seeded(6)) for t in (tree, other))
    order = torch.randperm(24, generator=seeded(5))
    assert not torch.equal(order, torch.arange(24))
    assert torch.equal(after.on, before.on[:, order])
    assert torch.equal(after.labels, before.labels)
    assert all(map(torch.equal, after.latents, before.latents))
    assert torch.equal(other.ancestor_heights(), tree.ancestor_heights()[order][:, order])
    # heights of the permuted tree go with its own tokens, not with those of the other
    siblings = (other.ancestor_heights() == 1).double()
    own, others = ((together(x.on) * siblings).sum() / siblings.sum() for x in (after, before))
    assert own > others + 0.03


# --- ensembles ----------------------------------------------------------------------------------------------------


def members_alone(kind):
    if kind == "HBLT":
        rho = torch.tensor([[0.9], [0.5], [0.7]], dtype=torch.float64)
        whole = HBLT.one_per_class(4, (2, 3), rho).permuted([seeded(i) for i in range(3)])
        return whole, [HBLT.one_per_class(4, (2, 3), float(r)).permuted(seeded(i)) for i, r in enumerate(rho)]
    whole = LatentSets.draw(6, (8, 9), 2, generator=[seeded(i) for i in range(3)])
    return whole, [LatentSets.draw(6, (8, 9), 2, generator=seeded(i)) for i in range(3)]


def same(a, b):
    return all(map(torch.equal, (a.tokens, a.labels, a.on, *a.latents), (b.tokens, b.labels, b.on, *b.latents)))


@pytest.mark.parametrize("kind", ["HBLT", "LatentSets"])
def test_a_member_draws_what_it_would_draw_alone(kind):
    whole, alone = members_alone(kind)
    assert whole.members == (3,)
    sample = whole.sample((3, 2, 50), generator=streams(1, range(3)))
    for i, member in enumerate(alone):
        own = member.sample((2, 50), generator=streams(1, [i])[0])
        assert same(
            own, type(own)(sample.tokens[i], sample.labels[i], tuple(x[i] for x in sample.latents), sample.on[i])
        )
    some = whole.select([2, 0])
    assert same(
        some.sample((2, 9), generator=streams(1, [2, 0])), pick(whole.sample((3, 9), generator=streams(1, range(3))))
    )
    assert not torch.equal(sample.tokens[0], sample.tokens[1])


def pick(sample, members=(2, 0)):
    index = torch.tensor(members)
    return type(sample)(
        sample.tokens[index], sample.labels[index], tuple(x[index] for x in sample.latents), sample.on[index]
    )


@pytest.mark.parametrize("kind", ["HBLT", "LatentSets"])
def test_equal_seeds_draw_equal_samples(kind):
    (first, _), (second, _) = members_alone(kind), members_alone(kind)
    a, b, other = (x.sample((3, 40), generator=seeded(s)) for x, s in ((first, 8), (second, 8), (first, 9)))
    assert same(a, b)
    assert not torch.equal(a.tokens, other.tokens)


@pytest.mark.parametrize("kind", ["HBLT", "LatentSets"])
def test_any_leading_shape_will_do(kind):
    whole, alone = members_alone(kind)
    for shape in ((), (0,), (5,), (2, 1, 3)):
        assert alone[0].sample(shape, generator=seeded()).labels.shape == shape
        assert whole.sample((3, *shape), generator=seeded()).on.shape[:-1] == (3, *shape)
    assert alone[0].sample(4, generator=seeded()).labels.shape == (4,)


@pytest.mark.parametrize("kind", ["HBLT", "LatentSets"])
def test_sampling_reads_nothing_back_from_the_device(kind):
    """What makes the host wait for a GPU: reading a number, or a result whose size depends on the data."""

    class NothingRead(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "_unique2", "equal"}
            return func(*args, **(kwargs or {}))

    whole, _ = members_alone(kind)
    with NothingRead():
        whole.sample((3, 8), generator=seeded())
        whole.sample((3, 8), generator=streams(0, range(3)))
        with pytest.raises(AssertionError):
            torch.ones(3).sum().item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("kind", ["HBLT", "LatentSets"])
def test_sampling_on_a_gpu_makes_no_host_wait(kind):
    whole = members_alone(kind)[0].to("cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    whole.sample((3, 8), generator=generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample = whole.sample((3, 8), generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sample.tokens.is_cuda


def test_streams_depend_on_seed_member_and_step_alone():
    def first(*args, **kwargs):
        return [int(torch.randint(2**40, (), generator=g)) for g in streams(*args, **kwargs)]

    assert first(0, [1, 2], 5) == first(0, [1, 2], 5) == [*first(0, [1], 5), *first(0, [2], 5)]
    every = [x for seed in (0, 1) for step in (0, 1) for x in first(seed, range(20), step)]
    assert len(set(every)) == 80


# --- sequences ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(6, 9), st.booleans()
)
def test_sequences_are_the_sorted_tokens_behind_pads(rows, length, negative):
    pad = -100 if negative else 6
    written = write_sequences(torch.tensor(rows), length=length, pad=pad).tolist()
    for row, sequence in zip(rows, written, strict=True):
        ids = [i for i, on in enumerate(row) if on]
        assert sequence == [pad] * (length - len(ids)) + ids


def test_a_sequence_may_be_shorter_than_the_vocabulary_if_its_tokens_fit():
    on = torch.tensor([[True, False, True, False], [False, False, False, True]])
    assert write_sequences(on, length=2, pad=4).tolist() == [[0, 2], [4, 3]]
    with pytest.raises(ValueError, match="length must be at least 2, the tokens of the longest sample, got 1"):
        write_sequences(on, length=1, pad=4)


# --- Table 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", TABLE1, ids=lambda c: f"{c.classes}-{c.children}-{c.latents[0]}")
def test_a_class_switches_on_all_that_is_below_it(column):
    n0, n1 = column.latents
    sets = LatentSets.draw(column.classes, column.latents, column.children, generator=seeded())
    lowest, upper, top = (level.tolist() for level in sets.sets)
    assert [len(level) for level in (lowest, upper, top)] == [n0, n1, column.classes]
    for level, below in ((lowest, 99), (upper, n0), (top, n1)):
        assert len({tuple(x) for x in level}) == len(level)
        assert all(len(set(x)) == column.children and x == sorted(x) and x[0] >= 0 and x[-1] < below for x in level)
    assert (sets.tokens.shape, sets.pad, sets.vocabulary) == ((column.classes, 30), 99, 100)
    for k, chosen in enumerate(top):
        below = {i for j in chosen for i in upper[j]}
        tokens = sorted({t for i in below for t in lowest[i]})
        assert sets.tokens[k].tolist() == [99] * (30 - len(tokens)) + tokens
        assert set(sets.latents[1][k].nonzero().flatten().tolist()) == set(chosen)
        assert set(sets.latents[0][k].nonzero().flatten().tolist()) == below
        assert sets.on[k].nonzero().flatten().tolist() == tokens


def test_samples_are_looked_up_by_class():
    sets = LatentSets.draw(20, (10, 20), 3, generator=[seeded(i) for i in range(4)])
    sample = sets.sample((4, 5000), generator=seeded(9))
    member = torch.arange(4)[:, None]
    for drawn, table in (
        (sample.tokens, sets.tokens),
        (sample.on, sets.on),
        *zip(sample.latents, sets.latents, strict=True),
    ):
        assert torch.equal(drawn, table[member, sample.labels])
    seen = torch.stack([row.bincount(minlength=20) for row in sample.labels])
    assert ((seen - 250) / (5000 * 0.05 * 0.95) ** 0.5).abs().max() < 4.5


def test_every_set_is_equally_likely():
    draws = LatentSets.draw(3, (3, 3), 2, vocabulary=6, generator=[seeded(i) for i in range(1500)]).sets[0]
    names = (draws[..., 0] * 5 + draws[..., 1]).flatten()
    counts = names.bincount(minlength=25)
    counts = counts[counts > 0]
    assert len(counts) == comb(5, 2)
    expected = 4500 / 10  # three different sets out of ten a draw, so the variance is below binomial
    assert ((counts - expected) / (1500 * 0.3 * 0.7) ** 0.5).abs().max() < 4


def test_all_the_sets_there_are_can_be_asked_for():
    sets = LatentSets.draw(45, (10, 10), 2, vocabulary=6, generator=seeded()).sets
    assert sorted(map(tuple, sets[0].tolist())) == [(i, j) for i in range(5) for j in range(i + 1, 5)]
    assert len(set(map(tuple, sets[2].tolist()))) == comb(10, 2)


def test_classes_that_look_alike_are_counted():
    # any two of the three pairs of lowest latents have all three between them
    assert int(LatentSets.draw(3, (3, 3), 2, generator=seeded()).distinct) == 1
    many = LatentSets.draw(50, (10, 20), 3, generator=[seeded(i) for i in range(5)])
    expected = [len({tuple(row) for row in member}) for member in many.tokens.tolist()]
    assert many.distinct.tolist() == expected
    assert min(expected) < 50


def test_the_published_table():
    assert len(TABLE1) == len({column[:3] for column in TABLE1}) == 12
    by_key = {column[:3]: column.ncorr for column in TABLE1}
    assert by_key[20, 2, (10, 20)] == ((0.99, 0.01), (0.81, 0.05))
    assert by_key[20, 3, (20, 30)] == ((0.96, 0.02), (0.68, 0.04))
    assert by_key[30, 2, (20, 30)] == ((0.94, 0.04), (0.74, 0.03))
    assert by_key[30, 3, (10, 20)] == ((0.99, 0.01), (0.72, 0.04))
    assert by_key[50, 2, (20, 30)] == ((0.95, 0.03), (0.55, 0.01))
    assert by_key[50, 3, (20, 30)] == ((0.95, 0.03), (0.61, 0.04))
    # sums of the two printed rows
    assert sum(column.ncorr[0].mean for column in TABLE1) == pytest.approx(11.67)
    assert sum(column.ncorr[1].mean for column in TABLE1) == pytest.approx(8.21)


def test_a_batch_for_twenty_members_takes_as_many_operations_as_one_for_two():
    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[-1] += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for members in (2, 20):
        sets = LatentSets.draw(50, (20, 30), 3, generator=[seeded(i) for i in range(members)])
        counts.append(0)
        with Counted():
            sets.sample((members, 128), generator=seeded())
    assert 0 < counts[0] == counts[1] < 40


# --- bad input ----------------------------------------------------------------------------------------------------


def tree(depth=2, branching=2, rho=0.9, p0=(0.5, 0.5), p_zero=(0.9, 0.3), **options):
    return HBLT(depth, branching, rho, p0, p_zero, **options)


def table(classes=20, latents=(10, 20), children=2, **options):
    return LatentSets.draw(classes, latents, children, **{"generator": seeded(), **options})


test_bad_input_gets_one_sentence = refusals(
    (lambda: tree(depth=0), "depth must be a whole number of at least 1, got 0"),
    (lambda: tree(branching=0), "branching must be a whole number of at least 1, got 0"),
    (lambda: tree(branching=1.5), "branching must be a whole number of at least 1, got 1.5"),
    (lambda: tree(branching=(2, 0)), "branching must be a whole number of at least 1, got 0"),
    (lambda: tree(branching=(2, 2, 2)), "branching must be a number or one for each of the 2 levels, got 3"),
    (lambda: tree(branching=[2, [1, 2, 1]]), "branching must be a number or one for each of 2 nodes, got 3"),
    (lambda: tree(depth=60), "branching makes 2097152 nodes on level 21, at most 2\\^20 fit"),
    (lambda: tree(rho=1.1), r"rho must lie in \[-1, 1\], got 1.1"),
    (lambda: tree(rho=float("nan")), "rho contains NaN"),
    (lambda: tree(rho=[0.9] * 3), "rho must be a number or one for each of the 1 levels or 4 edges, got 3 of them"),
    (lambda: tree(p0=()), "p0 must have at least one class, got none"),
    (lambda: tree(p0=(0.5, 0.4)), "p0 must sum to 1 over classes, got 0.9"),
    (lambda: tree(p_zero=(0.5,)), r"p_zero must have shape \(2,\) or \(..., 2, 2\), got \(2, 1\)"),
    (lambda: tree(p_zero=(0.5, 1.5)), r"p_zero must lie in \[0, 1\], got 1.5"),
    (lambda: tree(p0=[[0.5, 0.5]] * 2, rho=[[0.9]] * 3), "do not fit together"),
    (lambda: tree(vocabulary=4), "vocabulary must be at least 5, for 4 tokens and a pad, got 4"),
    (lambda: tree(length=0), "length must be a whole number of at least 1, got 0"),
    (lambda: tree(length=1, p_zero=(0.0, 0.0)).sample(50, generator=seeded()), "length must be at least"),
    (lambda: HBLT.one_per_class(0, 2, 0.9), "classes must be a whole number of at least 1, got 0"),
    (lambda: HBLT.one_per_class(3, 2, [0.9] * 3), "one for each of the 2 levels of edges, got 3"),
    (lambda: tree(rho=[[0.9]] * 2).sample(5, generator=seeded()), r"shape must begin with \(2,\), the members"),
    (lambda: tree().sample(-1, generator=seeded()), "shape must be a whole number of at least 0, got -1"),
    (lambda: tree().sample((3, 2), generator=[seeded()] * 2), r"shape must begin with 2, the number of generators"),
    (lambda: tree().permuted([]), "an ensemble needs at least one generator, got none"),
    (lambda: tree(rho=[[0.9]] * 2).permuted([seeded()] * 3), r"as many as the members \(2,\), got 3"),
    (lambda: tree().select([0]), "select takes members out of an ensemble, this is a single tree"),
    (lambda: tree().to("meta").sample(2, generator=seeded()), "the generator is on cpu, the data on meta"),
    (lambda: table(classes=0), "classes must be a whole number of at least 1, got 0"),
    (lambda: table(latents=(0, 20)), "latents must be a whole number of at least 1, got 0"),
    (lambda: table(children=0), "children must be a whole number of at least 1, got 0"),
    (lambda: table(children=11), "children must be at most 10, all the lowest latents there are, got 11"),
    (lambda: table(children=100), "children must be at most 99, all the tokens there are, got 100"),
    (lambda: table(vocabulary=5), "latents must be at most 6, the distinct sets of 2 out of 4 tokens, got 10"),
    (lambda: table(latents=(5, 11)), "latents must be at most 10, .* of 2 out of 5 lowest latents, got 11"),
    (lambda: table(classes=200), "classes must be at most 190, the distinct sets of 2 out of 20 latents, got 200"),
    (lambda: table(length=5), "length must be at least 8, the tokens of the longest sample, got 5"),
    (lambda: table(generator=[]), "an ensemble needs at least one generator, got none"),
    (lambda: table().select([0]), "select takes members out of an ensemble, this is a single generator"),
    (lambda: write_sequences(torch.ones(3), length=3, pad=3), "on must be boolean"),
    (lambda: write_sequences(torch.ones(3).bool(), length=3, pad=2), "pad must not be the id of a token, 0 to 2"),
    (lambda: write_sequences(torch.ones(3).bool(), length=0, pad=3), "length must be a whole number of at least 1"),
)


def test_all_of_a_tree_goes_to_the_device():
    moved = tree(depth=3).to("meta")
    assert {parent.device.type for parent in moved._parents} == {"meta"}
    assert moved.ancestor_heights().device.type == "meta"
