"""The exponent of the loss over data: its statistics beside slow oracles, and verdicts from made-up records."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import found, verdicts

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.language import language_exponent as study
from joma.studies.language.language_exponent import KINDS, MARKOV, SHUFFLED, STUDY, TEXT, Members, Record

CONFIG = replace(STUDY.quick, sizes=(100, 200, 400, 800, 1600), length=32, device="cuda", steps=100, every=20)
LAW, FIT, GAMMA, POWER = (claim.name for claim in STUDY.claims)
GAMMAS, BETA = {TEXT: 0.3, SHUFFLED: 0.0, MARKOV: 0.0}, 0.75
WORDS = 7


def made(
    folder, *, exponents=None, gammas=(), alphas=None, at=40, bend=0.0, config=CONFIG, exponential=False, noise=1e-4
):
    """A record of losses that fall like data^-γ/(2β), or with other exponents, and are lowest after `at` steps.

    bend: by how much the law of the two smallest sizes is flatter. exponential: how the text's correlations fall.
    """
    run = Run.create(folder / "made.sqlite", study=STUDY.name, config=plain_config(config), version=STUDY.version)
    gammas = GAMMAS | dict(gammas)
    exponents = {kind: gamma / (2 * BETA) for kind, gamma in gammas.items()} | (exponents or {})
    sizes, contexts, lags = (
        np.array(config.sizes),
        np.arange(1, config.length + 1),
        np.array(study.lags_of(config.length)),
    )
    luck = np.linspace(-0.002, 0.002, config.seeds)
    falls = {
        TEXT: np.exp(-lags / 8) if exponential else lags**-BETA,
        MARKOV: np.exp(-3.0 * lags),
        SHUFFLED: noise + 0 * lags,
    }
    for kind in KINDS:
        run.keep(f"{kind}/correlations", lambda kind=kind: (1 + luck)[:, None] * falls[kind])
    for step in range(0, config.steps + 1, config.every):
        for kind in KINDS:
            over = sizes ** -exponents[kind] * np.where(sizes < sizes[2], (sizes / sizes[2]) ** bend, 1.0)
            falls_like = np.where(sizes == sizes[-1], gammas[kind], 0.0)[:, None]  # less data sees no context
            profiles = contexts**-falls_like / np.mean(contexts**-falls_like, -1, keepdims=True)
            means = 5 * over[:, None] * (1 + np.roll(luck, KINDS.index(kind))) * (1 + abs(step - at) / 100)
            run.append(f"{kind}/held out", step, (means[..., None] * profiles[:, None]).reshape(-1, config.length))
    return run


def test_a_record_of_the_law_holds_and_its_exponents_are_found(tmp_path):
    with made(tmp_path) as run:
        text = Record(run)
        assert text.gamma == pytest.approx(0.3)
        assert text.beta == pytest.approx(BETA)
        assert text.predicted == pytest.approx(0.2)
        assert text.exponents == pytest.approx(0.2, abs=1e-9)
        found_ = verdicts(STUDY, run)
        assert {name: found_[name] for name in (LAW, GAMMA, POWER)} == dict.fromkeys((LAW, GAMMA, POWER), "holds")


@pytest.mark.parametrize(
    ("change", "claim", "verdict"),
    [
        ({"exponents": {TEXT: 0.26}}, LAW, "only qualitative"),
        ({"exponents": {TEXT: 0.14}}, LAW, "only qualitative"),
        ({"exponents": {TEXT: 0.0}}, LAW, "not above its control"),
        ({"exponents": {SHUFFLED: 0.2}}, LAW, "not above its control"),
        ({"exponents": {MARKOV: 0.3}}, LAW, "fails"),
        ({"at": 100}, LAW, "undecided"),
        ({"bend": 0.1}, FIT, "holds"),
        ({"exponents": {TEXT: 0.12}}, FIT, "fails"),
        ({"bend": 0.1, "at": 100}, FIT, "undecided"),
        ({"gammas": {SHUFFLED: 0.3}}, GAMMA, "not above its control"),
        ({"gammas": {MARKOV: 0.4}}, GAMMA, "fails"),
        ({"exponential": True}, POWER, "fails"),
        ({"noise": 0.3}, POWER, "not run"),
    ],
)
def test_a_verdict_follows_its_record(change, claim, verdict, tmp_path):
    with made(tmp_path, **change) as run:
        finding = found(STUDY, run, claim)
    assert finding.verdict == verdict, finding.as_json()


def test_the_rival_sees_the_smaller_half_alone_and_correlations_within_noise_do_not_count(tmp_path):
    with made(tmp_path, bend=0.1, noise=0.1) as run:
        assert Record(run).lags.tolist() == [1, 2, 4, 8]  # 16^-0.75 is below twice the noise, and above it
        exponents = found(STUDY, run, FIT).details["exponents"]
    assert [exponents[name] for name in ("fit", "predicted")] == pytest.approx([0.1, 0.2])


def test_networks_that_data_does_not_limit_leave_the_law_to_paper_scale(tmp_path):
    with made(tmp_path, at=100, config=replace(CONFIG, device="cpu")) as run:
        now = verdicts(STUDY, run)
        assert [now[name] for name in (LAW, FIT, GAMMA)] == ["at paper scale"] * 3
        assert now[POWER] == "holds"


def test_one_seed_that_still_falls_is_enough_to_say_so(tmp_path):
    with made(tmp_path) as run:
        text = Record(run)
        assert text.limited(TEXT).value == pytest.approx(0.4)
        text.curves[-1, 0, 2] = 0.0
        assert text.limited(TEXT).value == pytest.approx(1.0)


def test_correlations_are_the_largest_singular_value():
    tokens = torch.randint(WORDS, (4000,), generator=torch.Generator().manual_seed(0))
    tokens[1:] = torch.where(
        torch.rand(3999, generator=torch.Generator().manual_seed(1)) < 0.4, tokens[:-1], tokens[1:]
    )
    for lag, got in zip((1, 3), study.correlations(tokens, WORDS + 1, (1, 3)), strict=True):  # one word never occurs
        first, second = torch.eye(WORDS + 1).double()[tokens[:-lag]], torch.eye(WORDS + 1).double()[tokens[lag:]]
        matrix = first.T @ second / len(first) - first.mean(0)[:, None] * second.mean(0)
        assert got.item() == pytest.approx(torch.linalg.matrix_norm(matrix, 2).item(), rel=1e-6)
    parts = study.in_parts(tokens, WORDS, (1, 3), 4)
    assert parts.shape == (4, 2)
    assert torch.equal(parts[2], study.correlations(tokens[2000:3000], WORDS, (1, 3)))


def test_texts_keep_what_they_are_named_after():
    source = torch.Generator().manual_seed(3)
    train, valid = (torch.randint(WORDS, (count,), generator=source) for count in (30_000, 500))
    train[1::2] = (2 * train[::2]) % WORDS  # half of all pairs are certain
    kinds = study.texts(train, valid, WORDS, 5)
    assert torch.equal(kinds[TEXT][0], train)
    mixed = kinds[SHUFFLED][0]
    assert torch.equal(mixed.sort().values, train.sort().values)
    assert (mixed == train).float().mean() < 0.5
    assert torch.equal(kinds[SHUFFLED][1].sort().values, valid.sort().values)
    chain = torch.cat(kinds[MARKOV])
    assert len(chain) == 30_500
    pairs = [torch.bincount(text[:-1] * WORDS + text[1:], minlength=WORDS**2) / len(text) for text in (train, chain)]
    assert torch.allclose(pairs[0], pairs[1], atol=0.01)
    assert study.markov(torch.tensor([2, 0, 1]), 3, 7, 0).tolist() == [0, 1, 2, 0, 1, 2, 0]  # after its last word: anew


def test_members_read_their_own_stretch_and_nothing_beyond_it():
    config = replace(STUDY.quick, sizes=(20, 40, 80, 160), length=8, batch=50, valid=3, seeds=2, seed=7)
    members = Members(config, (torch.arange(1000), torch.arange(60)), 1000)
    for member, (size, start) in enumerate(zip(members.grid.cell, members.starts, strict=True)):
        read = torch.cat([members.batch(step, [member])[part] for step in range(8) for part in (0, 1)])
        assert (int(read.min()), int(read.max())) == (start, start + size - 1), "all of it, and no more"
    assert members.starts[0] == members.starts[2] != members.starts[1]
    read, following = members.batch(3, [5, 0])
    assert read.shape == (2, 50, 8)
    assert torch.equal(read + 1, following)
    assert torch.equal(members.batch(3, [0])[0][0], read[1])
    with pytest.raises(ValueError, match="too few"):
        Members(config, (torch.arange(150), torch.arange(60)), 1000)


def test_losses_are_by_context():
    config = replace(STUDY.quick, length=8, valid=20, seeds=2, sizes=(20, 40, 80, 160), vocabulary=WORDS)
    source = torch.Generator().manual_seed(1)
    members = Members(config, (torch.randint(WORDS, (400,), generator=source),) * 2, WORDS)
    decoder = members.ensemble().networks([0, 3])
    seen = members.losses(decoder, [0, 3])
    logs = decoder(members.valid[:, :-1]).log_softmax(-1)
    for member in range(2):
        for place in (0, 7):
            own = [-logs[member, row, place, members.valid[row, place + 1]].item() for row in range(20)]
            assert seen[member, place].item() == pytest.approx(np.mean(own), rel=1e-4)


def test_a_slope_is_minus_the_exponent():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert study.slope(x, np.stack([3 * x**-0.7, x**0.2])) == pytest.approx([0.7, -0.2])
    assert study._misfit(np.log(x), np.log(np.stack([3 * x**-0.7, 2 * x]))) == pytest.approx([0, 0], abs=1e-12)
    assert study._misfit(x, np.array([[0.0, 0.0, 0.0, 1.0]]))[0] > 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sizes": (8, 16, 32, 64)}, "sizes must be above length"), ({"heads": 5}, "cannot be shared by 5 heads")],
)
def test_configs_that_cannot_be_run_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(STUDY.quick, **change)
