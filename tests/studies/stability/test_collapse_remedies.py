"""What the remedies of `collapse` do to weights, against slow float64, and what the bench makes of a record."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from records import changed, found, verdicts
from small_runs import small

from joma.models import Decoder, DecoderConfig
from joma.recipes.language import corpus
from joma.studies.stability.collapse import record
from joma.studies.stability.collapse import study as collapse
from joma.studies.stability.collapse.figures import draw_remedies
from joma.studies.stability.collapse.remedies import clip_heads, extra_work, matrix_sign, restore_ranks, restoring
from joma.studies.stability.collapse.run import (
    CLIPPED,
    LOWER,
    PLAIN,
    QK_CLIP,
    REMEDIES,
    RESTORED,
    RISING,
    SUDDEN,
    WARMED,
    _work,
    built,
    members_of,
    plan,
    tend,
)

SHAPE = DecoderConfig(
    vocabulary=11, width=8, heads=2, mlp=8, layers=2, context=6, norm="pre-layer", activation="gelu", copies=False
)
TOKENS = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(0))


def decoder(members=3, size=4.0):
    made = Decoder(SHAPE, list(range(members))).double()
    with torch.no_grad():
        made.qkv.mul_(size)
        made.qkv_bias.normal_(generator=torch.Generator().manual_seed(1))
    return made


def logits(made):
    seen = []
    with torch.no_grad():
        made.features(TOKENS, look=lambda layer, name, value: seen.append(value.clone()) if name == "logits" else None)
    return torch.stack(seen)


def test_a_head_above_the_limit_comes_down_to_it_and_the_others_stay_bit_for_bit():
    made = decoder()
    before, weights = logits(made), {name: each.detach().clone() for name, each in made.named_parameters()}
    most = before.amax((2, 4, 5)).movedim(0, 1)  # members, layers, heads
    limit = float(most.flatten().median())
    with torch.no_grad():
        clip_heads(made, TOKENS, limit)
    for member, layer, head in np.ndindex(*most.shape):
        root = min(1.0, limit / float(most[member, layer, head])) ** 0.5
        for part, factor in enumerate((root, root, 1.0)):
            at = slice(8 * part + 4 * head, 8 * part + 4 * head + 4)
            for name in ("qkv", "qkv_bias"):
                now, was = made.get_parameter(name)[member, layer, ..., at], weights[name][member, layer, ..., at]
                torch.testing.assert_close(now, factor * was, rtol=1e-12, atol=0)
                assert factor != 1.0 or torch.equal(now, was)
    after = logits(made)
    torch.testing.assert_close(after[0].amax((1, 3, 4)), most[:, 0].clamp(max=limit))  # nothing before it changed
    assert all(torch.equal(each, weights[name]) for name, each in made.named_parameters() if "qkv" not in name)


def test_a_member_that_is_not_finite_stays_and_disturbs_none():
    made, alone = decoder(), decoder()
    with torch.no_grad():
        made.embedding[1] = torch.nan
        for each in (made, alone):
            clip_heads(each, TOKENS, 2.0)
            restore_ranks(each)
    assert torch.equal(made.qkv[[0, 2]], alone.qkv[[0, 2]])
    assert made.qkv[1].isfinite().all()


def test_restored_matrices_have_one_singular_value_at_the_norm_that_they_had():
    made, before = decoder(), decoder()
    with torch.no_grad():
        before.projection[0, 0, :, 0] *= 1e3  # almost of rank one
        made.projection.copy_(before.projection)
        restore_ranks(made)
    now = [*made.qkv.split(8, -1), made.projection]
    for new, old in zip(now, (*before.qkv.split(8, -1), before.projection), strict=True):
        u, _, v = torch.linalg.svd(old)
        sign = u @ v
        size = torch.linalg.matrix_norm(old, keepdim=True) / 8**0.5
        torch.testing.assert_close(new, size * sign, rtol=1e-4, atol=1e-4)
    assert torch.equal(made.up, before.up)
    made, before = decoder().float(), decoder()  # condition numbers to 1e5: in float32 the small ones would be lost
    with torch.no_grad():
        for each in (made, before):
            each.projection.mul_(torch.logspace(0, -5, 8)[:, None].to(each.projection))
        restore_ranks(made)
    u, _, v = torch.linalg.svd(made.projection.new_tensor(before.projection.float().tolist()).double())
    size = torch.linalg.matrix_norm(before.projection, keepdim=True) / 8**0.5
    torch.testing.assert_close(made.projection.double(), size * (u @ v), rtol=1e-5, atol=1e-6)
    wide = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    u, _, v = torch.linalg.svd(wide, full_matrices=False)
    torch.testing.assert_close(matrix_sign(wide), u @ v)


def test_ranks_are_restored_every_so_many_steps_and_not_at_the_start():
    made, steps = decoder(1), []
    for step in range(10):
        before = made.qkv.detach().clone()
        with torch.no_grad():
            restoring(4)(made, step)
            steps += [step] * (not torch.equal(before, made.qkv))
            made.qkv.add_(torch.randn(made.qkv.shape, generator=torch.Generator().manual_seed(step)))
    assert steps == [4, 8]


def test_what_a_remedy_multiplies_is_counted():
    ensemble = SimpleNamespace(
        networks=lambda members: Decoder(SHAPE, list(members)), batch=lambda step, members: (TOKENS, TOKENS)
    )
    positions, width, length = 18, 8, 6
    products = 2 * (positions * (4 * width**2 + 2 * width * 8) + 2 * 3 * 2 * length**2 * 4)  # of both layers
    forward = products + positions * width * 11
    work = extra_work(ensemble, lambda made, step: step == 1 and clip_heads(made, TOKENS, 1.0), (1, 2))
    assert work == pytest.approx(products / 2 / (3 * forward), rel=0.15)  # what needs no gradient takes less
    assert extra_work(ensemble, None, (1, 2)) == 0.0


def test_what_a_remedy_multiplies_does_not_depend_on_the_device(config, run):
    on_gpu, text = replace(config, device="cuda", precision="tf32"), corpus(config)
    for name in (QK_CLIP, RESTORED):
        assert _work(on_gpu, name, plan(on_gpu, text)[name], text) == run.value(f"{name}/work") > 0


# The networks


@pytest.fixture(scope="module")
def config(data_folder):
    return small("collapse", data=str(data_folder))


@pytest.fixture(scope="module")
def run(small_run):
    return small_run("collapse")


def test_remedies_are_twins_of_plain_members_that_differ_in_the_remedy_alone(config):
    text = corpus(config)
    variants = plan(config, text)
    plain = built(config, PLAIN, variants[PLAIN], text)
    for name in REMEDIES:
        members = members_of(config, name)
        assert [(one.kind, one.rate, one.seed) for one in members] == [
            (kind, rate, seed) for kind, rate in ((SUDDEN, 0.5), (RISING, 6.0)) for seed in (7, 8, 9, 10)
        ]
        made = built(config, name, variants[name], text)
        assert variants[name].decoder == variants[PLAIN].decoder
        share = 0.25 if name == LOWER else 1.0
        assert made.optimizer.rates(8) == tuple(share * one.rate for one in members)
        assert made.optimizer.clip == (plain.optimizer.clip / 10 if name == CLIPPED else plain.optimizer.clip)
        assert (made.tend is None) == (name in (CLIPPED, LOWER))
        assert all(map(torch.equal, made.batch(3, [0]), plain.batch(3, [0])))
    with pytest.raises(ValueError, match="bench_top_rates must be among top_rates"):
        small("collapse", bench_top_rates=(5.0,))


def test_a_clip_reads_the_text_of_the_step(config, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "joma.studies.stability.collapse.remedies.clip_heads", lambda _, tokens, limit: seen.append((tokens, limit))
    )
    batches = SimpleNamespace(batch=lambda step, members: (10 * step + members[0], None))
    tend(config, QK_CLIP, batches)(None, 7)
    assert seen == [(70, 100.0)]


def test_what_is_recorded_of_remedies(run):
    for name in REMEDIES:
        assert run.array(f"{name}/probe/loss").shape == (45, 8)
        assert (run.value(f"{name}/work") > 0) == (name in (QK_CLIP, RESTORED))
    assert run.array(f"{QK_CLIP}/probe/largest_logit")[:, 4:].max() < run.array(f"{PLAIN}/probe/largest_logit").max()
    first = record.of_bench(run, record.NOTHING, "loss")
    assert not np.array_equal(first, record.of_bench(run, RESTORED, "loss"))


def test_the_bench_compares_runs_of_the_same_cell_and_seed(run):
    for remedy in record.BENCH:
        name, members = record.bench(run, remedy)
        kind, rate, seed = (record.column(run, name, field)[members] for field in ("kind", "rate", "seed"))
        here = members >= 0
        assert here.tolist() == [True] * 4 + [remedy != record.WARM_UP] * 4
        assert seed[here].tolist() == [7.0, 8.0, 9.0, 10.0] * (here.sum() // 4)
        assert rate[here].tolist() == [0.5] * 4 + [6.0] * (here.sum() - 4)
        begins = WARMED if remedy == record.WARM_UP else SUDDEN
        assert kind[here].tolist() == [begins] * 4 + [RISING] * (here.sum() - 4)


ENDS = {record.NOTHING: 3.0, QK_CLIP: 2.0, RESTORED: 4.0, CLIPPED: 3.0, LOWER: 1.0}


def told(run, *, gone, ends=None, far=9.0, top=6.0):
    """A copy in which rising runs of some remedies diverge, and the others end at a loss.

    gone: remedies and "nothing". ends: the loss at the end of what does not diverge, where it is not that of `ENDS`;
    of rising runs it is 0.5 lower. far: the loss of what diverges. top: at which top rate it does.
    """
    ends = ENDS | (ends or {})

    def change(name, step, value):
        if name == "loss by frequency":
            return np.full(np.shape(value), 5.0)
        ensemble, _, rest = name.partition("/")
        if rest != "probe/loss":
            return value
        remedy = record.NOTHING if ensemble == PLAIN else ensemble
        kind, rate = (record.column(run, ensemble, field) for field in ("kind", "rate"))
        course = 4.5 - (4.5 - ends.get(remedy, 3.0)) * step / 88
        diverges = (kind == RISING) & (rate == top) & (remedy in gone) & (step >= 60)
        return np.where(diverges, far, course - 0.5 * (kind == RISING) * (step > 0))

    return changed(run, change)


@pytest.mark.parametrize(
    ("claim", "gone", "ends", "verdict"),
    [
        ("qk-clip-saves-runs", {"nothing"}, {}, "holds"),
        ("qk-clip-saves-runs", {"nothing", QK_CLIP}, {}, "not above its control"),
        ("restored-rank-saves-runs", {"nothing", QK_CLIP}, {}, "holds"),
        ("restored-rank-saves-runs", {"nothing", RESTORED}, {}, "not above its control"),
        ("clipped-gradients-save-runs", {"nothing"}, {}, "holds"),
        ("clipped-gradients-save-runs", {"nothing", CLIPPED}, {}, "not above its control"),
        ("qk-clip-saves-runs", set(), {}, "not run"),
        ("qk-clip-helps-where-nothing-diverges", {"nothing"}, {}, "holds"),
        ("qk-clip-helps-where-nothing-diverges", {"nothing"}, {QK_CLIP: 3.5}, "fails"),
        ("qk-clip-helps-where-nothing-diverges", {"nothing"}, {QK_CLIP: 3.0}, "not above its control"),
    ],
)
def test_the_verdict_follows_the_record(run, claim, gone, ends, verdict):
    assert verdicts(collapse.STUDY, told(run, gone=gone, ends=ends))[claim] == verdict


def test_the_details_have_every_remedy(run):
    copy = told(run, gone={"nothing", RESTORED})
    details = found(collapse.STUDY, copy, "qk-clip-saves-runs").details
    saved = details["runs saved, of those whose twin diverges"]
    assert saved[record.NOTHING] == saved[RESTORED] == 0.0
    assert saved[QK_CLIP] == saved[LOWER] == 1.0
    assert np.isnan(saved[record.WARM_UP])  # a rate that rises all the time is one
    assert details["runs that diverge"][record.NOTHING] == 0.5
    harm = details["loss at the end above the twin's, where that does not diverge"]
    assert [harm[name] for name in (record.NOTHING, QK_CLIP, RESTORED, LOWER)] == pytest.approx([0.0, -1.0, 1.0, -2.0])
    ends = details["loss at the end where the twin diverges (median)"]
    assert [ends[name] for name in (record.NOTHING, QK_CLIP, RESTORED)] == pytest.approx([9.0, 1.5, 9.0])
    assert details["multiplications added to a step"][LOWER] == 0.0
    gone, above = (
        dict(zip(record.BENCH, [bar.get_width() for bar in axis.patches], strict=True))
        for axis in draw_remedies(copy).figure.axes
    )
    assert {gone[name] for name in (record.NOTHING, RESTORED)} == {0.5}
    assert {gone[name] for name in record.BENCH if name not in (record.NOTHING, RESTORED)} == {0.0}
    assert [above[name] for name in (record.NOTHING, QK_CLIP, RESTORED)] == pytest.approx([0.0, -1.0, 1.0])


def test_a_run_that_fails_with_a_remedy_alone_is_no_gap(run):
    """Its loss counts as the largest of all, 4, and it is a run lost. A warm-up is compared where it has runs."""
    copy = told(run, gone={QK_CLIP}, far=np.nan)
    np.testing.assert_allclose(record.harm(copy, QK_CLIP), ((2.0 - 3.0) + (4.0 - 2.5)) / 2)
    np.testing.assert_allclose(record.learned(copy, QK_CLIP), 5.0 - (2.0 + 4.0) / 2)
    np.testing.assert_allclose(record.harm(copy, record.WARM_UP), 0.0, atol=1e-6)
    details = found(collapse.STUDY, copy, "qk-clip-helps-where-nothing-diverges").details
    lost = details["runs lost, of those whose twin does not diverge"]
    assert lost[QK_CLIP] == 0.5
    assert lost[LOWER] == lost[record.NOTHING] == 0.0


def test_where_only_runs_outside_of_the_bench_diverge_nothing_can_be_saved(run):
    copy = told(run, gone={"nothing"}, top=2.0)
    assert verdicts(collapse.STUDY, copy)["qk-clip-saves-runs"] == "not run"
    assert verdicts(collapse.STUDY, copy)["qk-norm-prevents-divergence"] == "holds"
