"""The ablations on a made-up language: all variants are trained and recorded, and their judges can be turned."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from records import HOLDS
from small_ablations import NONE, SGD, SMALL, STUDIES, carry_out, changed, patterns, run_on, verdict

from joma.models import Decoder
from joma.studies import _ablation as ablation
from joma.studies import _language_model_curves as recorded
from joma.studies import _language_models as lm
from joma.studies import (
    dropout_off,
    frozen_embeddings,
    mlp_nonlinearity,
    mlp_rank,
    normalisation,
    optimizers_compared,
    residual_branch,
)
from joma.studies.contract import NotRun, silent
from joma.studies.execute import draw, execute, judge


@pytest.mark.parametrize("name", STUDIES)
def test_all_variants_are_recorded_judged_and_drawn(ablations, name):
    run, study = ablations(name), STUDIES[name]
    variants = {entry.split("/")[0] for entry in run.names() if entry.endswith("/loss by frequency")}
    variants -= {optimizers_compared.TRIAL}
    assert len(variants) >= 2
    for variant in variants:
        assert recorded.layer_curves(run, variant).shape == (2, 3, 5), variant
        assert run.value(f"{variant}/seeds").tolist() == [1, 2, 3]
    findings = judge(study, run)
    assert [finding.claim for finding in findings] == list(study.claims)
    assert all(finding.control is not None for finding in findings)
    assert len(draw(study, run)) >= 2


@pytest.mark.parametrize("name", STUDIES)
def test_an_untrained_network_holds_nothing(ablations, name):
    run = ablations(name)

    def still(entry, step, value):
        ends = ("/loss", "/entropy", "/coherence", "/theorem", "/squares", "/frequency")
        return run.at(entry, 0) if entry.endswith(ends) or "/rank/" in entry else value

    found = {finding.verdict for finding in judge(STUDIES[name], changed(run, still))}
    assert not HOLDS & found


@pytest.mark.parametrize("name", ["nonlinearity", "embeddings", "mlp-rank"])
def test_a_rate_of_zero_holds_nothing(data_folder, tmp_path, name):
    run = carry_out(STUDIES[name], data_folder, tmp_path / "run", rate=0.0, steps=12)
    assert not HOLDS & {finding.verdict for finding in judge(STUDIES[name], run)}


NEEDS = [
    (mlp_nonlinearity.REBOUND, "ReLU", "identity"),
    (mlp_nonlinearity.REBOUND_OF_MLP, "ReLU", "no_MLP"),
    (residual_branch.REBOUND, "residual", "no_residual"),
    (dropout_off.BY_DROPOUT, "dropout", "no_dropout"),
]


@pytest.mark.parametrize(("claim", "whole", "without"), NEEDS)
def test_a_rebound_needs_what_its_twin_lacks(ablations, claim, whole, without):
    run = run_on(claim, ablations)
    cases = {
        "holds": {whole: 0.5, without: 0.0},
        "only qualitative": {whole: 0.5, without: 0.2},
        NONE: {whole: 0.5, without: 0.5},
    }
    for expected, back in cases.items():
        assert verdict(changed(run, patterns(**back)), claim) == expected
    more = {
        "in one layer alone": ({whole: (0.5, 0.0), without: 0.0}, "only qualitative"),
        "the other way round": ({whole: 0.0, without: 0.5}, NONE),
        "below the margin": ({whole: 0.04, without: 0.0}, NONE),
    }
    for case, (back, expected) in more.items():
        assert verdict(changed(run, patterns(**back)), claim) == expected, case


@pytest.mark.parametrize(
    ("claim", "without"), [(mlp_nonlinearity.DROP_OF_MLP, "no_MLP"), (residual_branch.DROP, "no_residual")]
)
def test_a_drop_needs_what_its_twin_lacks(ablations, claim, without):
    run = run_on(claim, ablations)
    assert verdict(changed(run, patterns(**{without: None})), claim) == "holds"
    assert verdict(changed(run, patterns()), claim) == NONE


SHOWS = [
    (mlp_nonlinearity.GELU, "GELU"),
    (normalisation.NONE, "none"),
    (normalisation.BEFORE, "LayerNorm_before"),
    (normalisation.RMS, "RMSNorm_after"),
    (optimizers_compared.SGD, "SGD"),
    (optimizers_compared.KEPT, "Adam_state_kept"),
    (optimizers_compared.DECAY, "AdamW"),
    (frozen_embeddings.ORTHONORMAL, "orthonormal"),
    (frozen_embeddings.FROZEN, "frozen"),
    (dropout_off.WITHOUT, "no_dropout"),
]


@pytest.mark.parametrize(("claim", "variant"), SHOWS)
def test_a_variant_shows_the_pattern_or_not(ablations, claim, variant):
    run = run_on(claim, ablations)
    for back, expected in ((0.5, "holds"), ((0.5, 0.0), "only qualitative"), (0.0, NONE), (None, NONE)):
        assert verdict(changed(run, patterns(**{variant: back})), claim) == expected, back


def test_a_linear_mlp_stays_sparse_or_not(ablations):
    cases = [
        ({"identity": 0.0}, "holds"),
        ({"identity": (0.0, 0.5)}, "only qualitative"),
        ({"identity": 0.5}, "fails"),
        ({"identity": None}, "fails"),
        ({"identity": 0.0, "ReLU": 0.0}, NONE),
        ({"identity": 0.0, "ReLU": (0.0, 0.5)}, "only qualitative"),
    ]
    for back, expected in cases:
        run = changed(ablations("nonlinearity"), patterns(**back))
        assert verdict(run, mlp_nonlinearity.LINEAR) == expected, back


def test_rank_bounces_needs_and_follows(ablations):
    run = ablations("mlp-rank")

    def both(**ranks):
        def change(name, step, value):
            value = patterns("rank/up", **ranks)(name, step, value)
            return patterns()(name, step, value) if name.endswith("valid/entropy") else value

        return change

    found = changed(run, both(ReLU=0.5, identity=0.0))
    assert [finding.verdict for finding in judge(STUDIES["mlp-rank"], found)] == ["holds"] * 3
    found = changed(run, both(ReLU=0.0, identity=0.0))
    assert verdict(found, mlp_rank.BOUNCES) == NONE
    assert verdict(found, mlp_rank.NONLINEAR) == NONE

    def by_time(name, step, value):
        value = both()(name, step, value)
        return value * 0 + 2 - math.log1p(step) / 4 if name.endswith("rank/up") else value

    assert verdict(changed(run, by_time), mlp_rank.TOGETHER) == NONE


def test_what_learning_embeddings_is_good_for(ablations):
    run = ablations("embeddings")

    def made(**ends):
        def change(name, step, value):
            value = patterns()(name, step, value)
            shift = ends.get(name.replace("/", "_").replace(" ", "_").replace(",", ""))
            return value if shift is None or step == 0 else value * 0 + shift + np.linspace(0, 0.003, 3)

        return changed(run, change)

    for loss, expected in ((0.7, "holds"), (0.5, NONE), (0.3, NONE)):
        assert verdict(made(frozen_valid_loss=loss), frozen_embeddings.BETTER_LEARNED) == expected
    for alike, expected in ((0.4, "holds"), (0.2, NONE)):
        found = made(learned_coherence=alike, frozen_coherence=0.2)
        assert verdict(found, frozen_embeddings.ALIKE_LEARNED) == expected
    cases = (
        (0.95, 0.3, "holds"),
        (0.6, 0.3, "only qualitative"),
        (0.95, 0.95, NONE),
        (-0.9, 0.3, NONE),
    )
    for orthonormal, random, expected in cases:
        ends = {"orthonormal_estimate_theorem": orthonormal, "frozen_few_words_estimate_theorem": random}
        found = made(**ends, orthonormal_estimate_frequency=0.1)
        assert verdict(found, frozen_embeddings.LOGITS) == expected


def test_drops_are_those_of_the_measure(ablations):
    run = ablations("nonlinearity")
    for variant in mlp_nonlinearity.VARIANTS:
        shape, found = ablation.shape_of(run, variant), recorded.layer_rebounds(run, variant)
        np.testing.assert_allclose(shape.drop.mean(0), found.drop, atol=1e-12)
        np.testing.assert_allclose(shape.rebound.mean(0), found.rebound, atol=1e-12)
    gap = ablation.differences(run, "ReLU", "identity", "drop")[1]
    pairs = ablation.shape_of(run, "ReLU").drop[:, 1] - ablation.shape_of(run, "identity").drop[:, 1]
    assert gap.mean == pytest.approx(pairs.mean())
    assert gap.half_width == pytest.approx(4.302653 * pairs.std(ddof=1) / math.sqrt(3), rel=1e-6)


def test_variants_differ_in_one_thing(data_folder):
    config = ablation.AblationConfig(**SMALL, data=str(data_folder))
    base = lm.recipe(config, lm.corpus(config), layers=2, rates=(0.02,))
    for module in (mlp_nonlinearity, residual_branch, normalisation, mlp_rank, dropout_off):
        twin, *others = (change(base) for change in module.VARIANTS.values())
        assert twin == base
        for other in others:
            back = dataclasses.replace(other, decoder=base.decoder)
            assert back == base
            differing = {
                entry.name
                for entry in dataclasses.fields(base.decoder)
                if getattr(base.decoder, entry.name) != getattr(other.decoder, entry.name)
            }
            assert len(differing - {"mlp"}) <= 1
            assert_equal_starts(base.decoder, other.decoder)
    base, few = base.decoder, base.decoder.with_(vocabulary=8)
    for shape in (base.with_(embeddings="frozen"), few.with_(embeddings="orthonormal")):
        assert_equal_starts(base if shape.vocabulary == base.vocabulary else few, shape)


def assert_equal_starts(one, other):
    """All that two networks of one seed have in common begins with the same values."""
    first, second = (Decoder(shape, seeds=[3]).state_dict() for shape in (one, other))
    chosen = {"embedding"} if other.embeddings == "orthonormal" else set()
    common = (first.keys() & second.keys()) - chosen
    assert {"qkv", "projection", "out", "out_bias"} <= common
    for name in common:
        assert torch.equal(first[name], second[name]), name


def test_embeddings_are_what_they_are_called(ablations):
    run = ablations("embeddings")
    ends = {name: recorded.curve(run, name, "coherence")[0] for name in ("learned", "frozen", "orthonormal")}
    assert np.abs(ends["orthonormal"]).max() < 1e-6
    assert np.ptp(ends["frozen"], axis=1).max() == 0
    assert np.ptp(ends["learned"], axis=1).min() > 0


def test_several_heads_leave_theorem_1_open(data_folder, tmp_path):
    run = carry_out(STUDIES["embeddings"], data_folder, tmp_path / "run", heads=2, layers=1, steps=12)
    assert verdict(run, frozen_embeddings.LOGITS) == "not run"


def test_the_rate_of_sgd_is_the_best_of_a_trial(ablations):
    run = ablations("optimizer")
    losses = recorded.curve(run, optimizers_compared.TRIAL, "valid/loss")[:, 0, -1]
    assert recorded.steps_of(run, optimizers_compared.TRIAL).tolist() == [0, 8]
    assert run.value("SGD/rates") == run.value("trial of SGD/rates")[np.nanargmin(losses)]

    def first_is_best(name, step, value):
        return np.array([0.1, 1.0, np.nan]) if name == "trial of SGD/valid/loss" else value

    assert optimizers_compared.chosen_rate(changed(run, first_is_best)) == 0.1

    def none(name, step, value):
        return value * np.nan if name == "trial of SGD/valid/loss" else value

    with pytest.raises(NotRun, match="every rate of SGD diverged"):
        optimizers_compared.chosen_rate(changed(run, none))


def test_a_state_that_was_never_renewed_tells_nothing(data_folder, tmp_path):
    run = carry_out(STUDIES["optimizer"], data_folder, tmp_path / "run", tokens=3000, steps=12)
    assert "Adam, state kept/rates" not in run
    assert verdict(run, optimizers_compared.KEPT) == "not run"
    assert len(draw(STUDIES["optimizer"], run)) == 2


def test_frequencies_lose_their_entropy(data_folder):
    config = ablation.AblationConfig(**SMALL | {"valid_sequences": 1000}, data=str(data_folder))
    corpus = lm.corpus(config)
    made = lm.recipe(config, corpus)
    count = torch.bincount(corpus.tokens["train"].long(), minlength=40).double() + 1
    whole = -(count / count.sum()).log()[corpus.tokens["valid"].long()].mean()
    assert lm.frequency_loss(made, corpus) == pytest.approx(float(whole), abs=0.05)
    assert lm.frequency_loss(made.with_decoder(vocabulary=8), corpus) < float(whole)


def test_a_finished_run_is_not_trained_again(ablations, data_folder):
    before = ablations("optimizer").names()
    config = optimizers_compared.Config(**SMALL, **SGD, data=str(data_folder))
    optimizers_compared.run(config, ablations("optimizer"), silent)
    assert ablations("optimizer").names() == before


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds": 2}, "seeds must be at least 3"),
        ({"steps": 11}, "leave no valley"),
        ({"sgd_rates": (0.0,)}, "positive"),
    ],
)
def test_refusals(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        optimizers_compared.Config(**SMALL | changes)


@pytest.mark.parametrize("name", STUDIES)
def test_paper_scale_is_eight_epochs_on_a_gpu(name, data_folder, tmp_path):
    paper = STUDIES[name].paper
    assert (paper.steps, paper.every, paper.layers, paper.rate, paper.seeds) == (8 * 2_929, 1_000, 2, 1e-4, 6)
    assert (paper.device, paper.precision, paper.corpus) == ("cuda", "half-logits", "wikitext-2")
    if not torch.cuda.is_available():
        with pytest.raises(NotRun, match=f"device cuda needs a CUDA GPU, .* joma run {name} with --device cpu"):
            carry_out(STUDIES[name], data_folder, tmp_path / "run", device="cuda")


def test_a_finished_run_of_another_text_is_not_shown_as_that_of_this_one(data_folder, tmp_path):
    config = residual_branch.STUDY.quick
    config = type(config)(**SMALL, data=str(tmp_path))
    (tmp_path / "wikitext-2").mkdir()
    for split in ("train", "valid", "test"):
        text = (data_folder / "wikitext-2" / f"{split}.txt").read_text(encoding="utf-8")
        (tmp_path / "wikitext-2" / f"{split}.txt").write_text(text, encoding="utf-8")
    first = execute(residual_branch.STUDY, config, tmp_path / "out", pictures=False)
    assert execute(residual_branch.STUDY, config, tmp_path / "out", pictures=False).findings == first.findings
    with (tmp_path / "wikitext-2" / "train.txt").open("a", encoding="utf-8") as stream:
        stream.write("one line more\n" * 30)
    with pytest.raises(ValueError, match="was made of another text than wikitext-2 is now; begin anew with --fresh"):
        execute(residual_branch.STUDY, config, tmp_path / "out", pictures=False)
    (tmp_path / "wikitext-2" / "train.txt").unlink()  # the text is gone, what was found in it is not
    (tmp_path / "wikitext-2").rename(tmp_path / "elsewhere")
    assert execute(residual_branch.STUDY, config, tmp_path / "out", pictures=False).findings == first.findings
