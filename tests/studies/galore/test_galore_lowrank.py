"""Gradients of decoders: what is measured on them is right, and the judges can be turned."""

import numpy as np
import pytest
import torch
from every_study import says_what_is_seen
from records import changed, found, verdicts

from joma.figures.style import house_style
from joma.models import Decoder, DecoderConfig
from joma.studies.galore.galore_lowrank.run import (
    MATRICES,
    SERIES,
    SHUFFLED,
    STATISTICS,
    WORDS,
    after_refresh,
    captured,
    gradient,
    gradients,
    gram,
    overlap,
    points,
    probe,
    projector_ranks,
    rank,
    same_norms,
    spectrum_of,
    statistics,
)
from joma.studies.galore.galore_lowrank.study import STUDY
from joma.training import next_token_loss

pytestmark = pytest.mark.usefixtures("no_other_text")
SEEDS, NAMES = 3, ("1 layer", SERIES)


def singular(matrices):
    return torch.linalg.svdvals(matrices.double()).square()


@pytest.mark.parametrize("shape", [(3, 2, 16, 40), (3, 2, 40, 16), (3, 2, 16, 16)])
def test_statistics_are_those_of_the_singular_values(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * torch.logspace(0, -1, shape[-1])
    energy = singular(matrices)
    share = energy / energy.sum(-1, keepdim=True)
    got = dict(zip(STATISTICS, statistics(spectrum_of(gram(matrices))[0]).movedim(-1, 0), strict=True))
    torch.testing.assert_close(got["stable rank"], energy.sum(-1) / energy[..., 0], rtol=1e-4, atol=0)
    torch.testing.assert_close(
        got["stable rank of the rest"], energy[..., 1:].sum(-1) / energy[..., 1], rtol=1e-4, atol=0
    )
    torch.testing.assert_close(got["effective dimension"], 1 / share.square().sum(-1), rtol=1e-4, atol=0)
    for name, count in zip(STATISTICS[3:], projector_ranks(16), strict=True):
        torch.testing.assert_close(got[name], share[..., :count].sum(-1), rtol=1e-4, atol=0)


def test_the_projector_keeps_what_its_directions_hold():
    matrices = torch.randn(4, 16, 30, generator=torch.Generator().manual_seed(2))
    grams = gram(matrices)
    shares, directions = spectrum_of(grams, vectors=True)
    torch.testing.assert_close(captured(grams, directions), shares[..., :4].sum(-1), rtol=1e-4, atol=0)
    left = torch.linalg.svd(matrices)[0][..., :4]
    torch.testing.assert_close(overlap(left, directions), torch.ones(4, dtype=torch.float64), rtol=1e-4, atol=0)
    wide = torch.linalg.qr(torch.randn(400, 16, 4, generator=torch.Generator().manual_seed(3)))[0]
    assert float(overlap(wide[:200], wide[200:]).mean()) == pytest.approx(4 / 16, abs=0.02)


def test_matrices_of_nearly_rank_one_are_solved_whatever_the_solver_does(monkeypatch):
    spike = torch.ones(16, 1) + 1e-4 * torch.randn(3, 2, 16, 30, generator=torch.Generator().manual_seed(5))
    threads = torch.get_num_threads()
    shares, directions = spectrum_of(gram(spike), vectors=True)

    def gives_up(_):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    for solver in ("eigh", "eigvalsh"):
        monkeypatch.setattr(torch.linalg, solver, gives_up)
    by_svd, same = spectrum_of(gram(spike), vectors=True)
    torch.testing.assert_close(by_svd, shares, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(overlap(directions, same), torch.ones(3, 2, dtype=torch.float64))
    torch.testing.assert_close(spectrum_of(gram(spike))[0], shares, rtol=1e-9, atol=1e-15)
    assert torch.get_num_threads() == threads


def test_a_network_that_diverged_disturbs_no_other():
    matrices = torch.randn(2, 16, 20)
    alone = statistics(spectrum_of(gram(matrices[1]))[0])
    matrices[0] = torch.nan
    shares, _ = spectrum_of(gram(matrices), vectors=True)
    assert shares[0].isnan().all()
    torch.testing.assert_close(statistics(shares)[1], alone, rtol=1e-5, atol=0)


def test_random_matrices_have_the_same_norms_and_nothing_else():
    generator = torch.Generator().manual_seed(4)
    scale = torch.logspace(0, -1, 40)[:, None] * torch.logspace(0, -0.5, 30)
    spike = torch.ones(3, 40, 30) + 0.1 * torch.randn(3, 40, 30, generator=generator)
    matrices = scale * spike
    matrices[:, :, 3] = 0.0  # a node that is dead
    made = same_norms(matrices, generator)
    for dim in (-1, -2):
        torch.testing.assert_close(made.norm(dim=dim), matrices.norm(dim=dim), rtol=1e-2, atol=1e-6)
    assert (made[:, :, 3] == 0).all()
    own, random = (statistics(spectrum_of(gram(part))[0])[:, 0] for part in (matrices, made))
    assert (own < 1.1).all()
    assert (random > 3).all()


def test_gradients_are_those_of_the_mean_loss_by_each_matrix():
    decoder = Decoder(DecoderConfig(vocabulary=20, width=16, mlp=24, layers=2), seeds=[0, 1])
    text = torch.randint(20, (3, 4, 8), generator=torch.Generator().manual_seed(0))
    batches = [(part[:, :-1], part[:, 1:]) for part in text]
    got = gradients(decoder, batches)
    assert set(got) == {*MATRICES, *WORDS}
    together_batch = (torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches]))
    next_token_loss(decoder, together_batch).sum().backward()
    together = torch.cat([got[name] for name in ("query", "key", "value")], -1)
    torch.testing.assert_close(together, decoder.qkv.grad, rtol=1e-4, atol=1e-7)
    for name, theirs in {"output": "projection", "up": "up", "down": "down", "output matrix": "out"}.items():
        torch.testing.assert_close(got[name], getattr(decoder, theirs).grad, rtol=1e-4, atol=1e-7)


def test_points_come_in_pairs_from_the_first_step_to_the_last():
    found = points(5800, 200, 5)
    assert found[:2] == [0, 200]
    assert found[-2:] == [5600, 5800]
    assert all(point % 200 == 0 for point in found)
    assert points(40, 10, 3) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("name", NAMES)
def test_the_record_starts_with_equal_networks_and_has_every_overlap_but_the_first(run, name):
    assert run.steps(f"{name}/valid/loss").tolist() == [0, 10, 20, 30, 40]
    assert gradient(run, name, "large", "stable rank").shape == (SEEDS, 5, 1, len(MATRICES))
    weights = [probe(run, name, "nodes/V", text=text) for text in (0, SHUFFLED)]
    np.testing.assert_allclose(weights[0][:, 0], weights[1][:, 0], rtol=1e-5)  # other places of one batch
    assert (weights[0][:, -1] != weights[1][:, -1]).all()
    before = probe(run, name, "subspace/before")
    assert np.isnan(before[:, 0]).all()
    assert ((before[:, 1:] > 0) & (before[:, 1:] <= 1 + 1e-6)).all()
    assert after_refresh(run, name).tolist() == [1, 2, 3, 4]
    own, batch, earlier = (probe(run, name, f"kept/{which}")[:, 1:] for which in ("own", "batch", "before"))
    assert (own >= batch - 1e-9).all()  # no projector keeps more than a matrix's own
    assert (own >= earlier - 1e-9).all()
    np.testing.assert_allclose(own, gradient(run, name, "other", "energy m/4")[:, 1:], atol=1e-5)
    assert (probe(run, name, "kept/targets") <= gradient(run, name, "large", "energy 1") + 1e-6).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_learned_and_shuffled_targets_are_not(run, name):
    loss = run.array(f"{name}/valid/loss")[-1].reshape(2, SEEDS)
    frequencies = float(run.value(f"{name}/loss by frequency"))
    assert (loss[0] < frequencies - 0.05).all()
    assert (loss[SHUFFLED] > frequencies - 0.05).all()


GOOD = {
    "large": (2.0, 1.0), "twin": (2.0, 2.0), "gaussian": 8.0, "energy": 0.98, "gaussian energy": 0.6, "before": 0.9,
    "batches": 0.95, "V": (9.0, 6.0), "twin V": 9.0, "V'": (9.0, 2.0), "norms": 3.0, "spread": (3.0, 30.0),
    "targets": 60.0, "loss": 2.0,
}  # fmt: skip


def pretended(run, **changes):
    """A record in which everything is as the sources say, but for these changes; pairs are of first and last point."""
    values = GOOD | changes

    def noise(name, step):
        """Texts x seeds. No two numbers have the same: seeds that agree to the last digit tell nothing."""
        turn = list(GOOD).index(name) + (step > 0)
        return 1e-3 * np.concatenate([np.roll([-1.0, 0.0, 1.0], turn + text) for text in range(2)])

    def pair(name, step, twin=None):
        first, last = values[name] if isinstance(values[name], tuple) else (values[name],) * 2
        own = first if step == 0 else last
        other = own if twin is None else np.broadcast_to(values[twin], 2)[int(step > 0)]
        return np.repeat([own, other], SEEDS) * (1 + noise(name, step))

    def change(name, step, value):
        name = name.split("/", 1)[1] if "/" in name else name
        rows = {
            "probe/subspace/before": lambda: pair("before", step),
            "probe/subspace/batches": lambda: pair("batches", step),
            "probe/nodes/V": lambda: pair("V", step, "twin V"),
            "probe/nodes/V'": lambda: pair("V'", step),
            "probe/nodes/V' by its norms": lambda: pair("norms", step),
            "probe/nodes/V' of equal norms": lambda: np.full(2 * SEEDS, 16.0),
            "probe/nodes/spread": lambda: pair("spread", step),
            "valid/loss": lambda: np.repeat([values["loss"] if step else 5.0, 4.0], SEEDS),
        }
        if name in rows:
            made = rows[name]()
            return np.broadcast_to(made.reshape(-1, *[1] * (value.ndim - 1)), value.shape).copy()
        if name in ("probe/gradient/large", "probe/gradient/gaussian"):
            made = np.array(value)
            large = name.endswith("large")
            ranks = pair("large", step, "twin") if large else pair("gaussian", step)
            energy = pair("energy" if large else "gaussian energy", step)
            made[..., 0], made[..., -1] = ranks[:, None, None], energy[:, None, None]
            return made
        if name == "batch/large":
            return np.array([100.0, 90.0, values["targets"]])
        return np.array(3.5) if name == "loss by frequency" else value

    return changed(run, change)


def test_what_the_sources_say_would_hold(run):
    assert set(verdicts(STUDY, pretended(run)).values()) == {"holds"}


@pytest.mark.parametrize(
    ("claim", "changes", "verdict"),
    [
        ("gradient-is-low-rank", {"gaussian": 1.0}, "not above its control"),
        ("gradient-is-low-rank", {"gaussian": 1.5}, "only qualitative"),
        ("gradient-is-low-rank", {"gaussian": 0.5}, "fails"),
        ("gradient-is-low-rank", {"large": (6.0, 5.0), "gaussian": 15.0}, "only qualitative"),  # above a quarter of 16
        ("gradient-is-low-rank", {"targets": 15.0}, "not above its control"),  # the batch limits the rank
        ("gradient-rank-falls", {"large": (1.0, 2.0)}, "fails"),
        ("gradient-rank-falls", {"twin": (2.0, 1.0)}, "not above its control"),
        ("gradient-rank-falls", {"large": (2.0, 1.9)}, "only qualitative"),
        ("quarter-rank-captures", {"energy": 0.85, "gaussian energy": 0.85}, "not above its control"),
        ("quarter-rank-captures", {"energy": 0.8}, "only qualitative"),
        ("quarter-rank-captures", {"targets": 15.0}, "not above its control"),
        ("subspace-changes-slowly", {"before": 0.25}, "not above its control"),
        ("subspace-changes-slowly", {"before": 0.6}, "only qualitative"),
        ("nodes-become-low-rank", {"twin V": (9.0, 3.0)}, "not above its control"),
        ("nodes-become-low-rank", {"V": (6.0, 9.0)}, "fails"),
        ("nodes-gradient-is-lower", {"V'": (3.0, 2.0)}, "not above its control"),
        ("nodes-gradient-is-lower", {"V'": (3.0, 5.0)}, "fails"),
        ("nodes-rows-carry-it", {"spread": (30.0, 30.0)}, "not above its control"),
        ("nodes-rows-carry-it", {"spread": (2.0, 6.0)}, "only qualitative"),  # twice as wide, but not widely
        ("nodes-rows-carry-it", {"norms": 15.0}, "only qualitative"),  # the norms explain nothing
    ],
)  # fmt: skip
def test_every_claim_can_be_missed(run, claim, changes, verdict):
    assert verdicts(STUDY, pretended(run, **changes))[claim] == verdict


def test_networks_that_learn_nothing_do_not_count(run):
    copy = pretended(run, loss=3.48)
    assert set(verdicts(STUDY, copy).values()) == {"not run"}
    assert "learned no more than how frequent words are" in found(STUDY, copy, "gradient-is-low-rank").reason


@pytest.mark.long
def test_a_network_that_diverged_is_left_out_and_named(run):
    def lose_one(name, step, value):
        if name == "1 layer/diverged_at":
            value = np.array(value)
            value[1] = 3
        return value

    copy = changed(run, lose_one)
    assert np.isnan(rank(copy, "1 layer")[1]).all()
    finding = found(STUDY, copy, "gradient-is-low-rank")
    assert finding.details["diverged and left out"] == {"runs of 1 layer": 1.0}
    with house_style():
        for drawing in STUDY.draw(copy):
            says_what_is_seen(drawing)
