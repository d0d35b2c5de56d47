"""What makes the rebound, on a made-up language: twins, their record, and judges that can be turned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import changed, found, verdicts
from small_runs import small

from joma.claims.contract import silent
from joma.claims.execute import draw
from joma.figures.style import house_style
from joma.recipes.language import curves as recorded
from joma.recipes.language.training import ensemble
from joma.runs import Run
from joma.studies.rebound import _twin_claims, dilution, reading, word_logits
from joma.studies.rebound import _twins as record
from joma.studies.rebound._held import Held
from joma.studies.rebound._twins import twin_name

NONE = "not above its control"
HELD = {
    "dilution": {dilution.LOGITS: dilution.BOTH, dilution.PREFERENCE: dilution.SHARED},
    "reading": {reading.INPUT: reading.MEAN, reading.SPREADS: reading.MOMENTS},
    "word-logits": {word_logits.LOSE: word_logits.WORDS},
}
MODULES = {"dilution": dilution, "reading": reading, "word-logits": word_logits}
RISE = 0.4  # of a layer that comes back, in records that are made up


@pytest.fixture(scope="module")
def config(data_folder):
    return small("dilution", data=str(data_folder))


@pytest.fixture(scope="module", params=MODULES)
def module(request):
    return MODULES[request.param]


@pytest.fixture(scope="module")
def run(module, small_run):
    return small_run(module.STUDY.name)


# ---- the run


def test_twins_leave_their_base_at_the_valley(module, run):
    for base in ("1 layer", "2 layers"):
        whole = recorded.curve(run, base, "valid/entropy")[0]
        for twin in module.TWINS.of(base):
            assert recorded.steps_of(run, twin).tolist() == [4, 8, 10]
            twins = recorded.curve(run, twin, "valid/entropy")[0]
            np.testing.assert_array_equal(twins[:, 0], whole[:, 2])
            assert np.abs(twins[:, 1:] - whole[:, 3:]).min() > 0
            assert (recorded.curve(run, twin, "held/miss")[0][:, 0] == 0).all()
    assert len(module.TWINS.of("1 layer")) == {"dilution": 5, "reading": 4, "word-logits": 2}[module.STUDY.name]


def test_a_twin_has_what_it_holds_and_its_control_has_not(module, run):
    for base in ("1 layer", "2 layers"):
        for held in set(module.TWINS.holds) - {dilution.SHARED, *module.TWINS.uncontrolled}:
            twin, control = (
                recorded.curve(run, twin_name(base, held, elsewhere=elsewhere), "held/miss")[0][:, 1:].mean()
                for elsewhere in (False, True)
            )
            assert twin < control, held


def test_a_twin_is_drawn_by_its_seeds_and_pushed_as_often_as_the_config_says(module, config, tmp_path, monkeypatch):
    made_of = {}

    def take(variants, text, run, progress, *, adapt, **rest):
        made_of.update({name: adapt(name, ensemble(one, text)) for name, one in variants.items()})

    monkeypatch.setattr(record, "train_variants", take)
    with Run.create(tmp_path / "run.sqlite", study=module.STUDY.name, config={}) as run:
        module.TWINS.run(replace(config, layers=(1,), seed=7, refresh=1), run, silent)  # measured every two steps
    for name, hold in module.TWINS.of("1 layer").items():
        twin = made_of[name].networks([1, 2])  # the second and the third of the seeds 7, 8 and 9
        wanted = Held(twin.config, [8, 9], hold, twin.tokens, at=4, every=1)
        assert torch.equal(twin.drawn, wanted.drawn), name
        assert torch.equal(twin.embedding, wanted.embedding), name
        assert (twin.at, twin.every, twin.hold) == (4, 1, hold)


# ---- judges


def made(run, *, rise=RISE, gone=None, control=0.0, spread=0.01, off=0.0, loss=1.0):
    """A copy in which every layer of a base rises by `rise`; twins lack the shares `gone` of it, controls `control`."""
    gone = gone or {}

    def share(variant):
        for held in gone:
            if variant.endswith(f", {held} held"):
                return gone[held]
        return control if variant.endswith("elsewhere") else 0.0

    def change(name, step, value):
        variant, _, what = name.partition("/")
        if what == "valid/loss":
            return value * 0 + (9.0 if step == 0 else loss)
        if what == "held/miss":
            return value * 0 + (off if "held" in variant else 1.0) * (step > 4)  # at the valley nothing can be off
        if what == "valid/entropy":
            turn = variant.endswith(" held") + 2 * variant.endswith("elsewhere")  # no twin has the seeds of another
            seeds = spread * np.roll(np.arange(len(value)) - 1, turn)[:, None, None]
            back = rise * (1 - share(variant)) + seeds
            return 2.5 - min(step, 4) / 4 + max(step - 4, 0) / 6 * back + 0 * value
        return value

    return changed(run, change)


@pytest.mark.parametrize("place", range(2))
def test_what_makes_the_rebound(module, run, place):
    claims, study = HELD[module.STUDY.name], module.STUDY
    if place >= len(claims):
        pytest.skip("the study has fewer claims")
    claim, held = list(claims.items())[place]
    for gone, control, verdict in (
        (1.0, 0.0, "holds"),
        (0.65, 0.1, "holds"),
        (0.55, 0.0, "only qualitative"),  # it removes a part, and does not make the rebound
        (1.0, 0.25, NONE),  # any push of this size removes a part
        (0.2, 0.0, "only qualitative"),
        (0.0, 0.0, NONE),
        (-0.8, 0.0, "fails"),
    ):
        copy = made(run, gone={held: gone}, control=control, spread=1e-3)
        assert found(study, copy, claim).verdict == verdict, (gone, control)
    copy = made(run, gone={held: 1.0}, spread=1e-3, off=0.05)
    others = {name: verdict for name, verdict in verdicts(study, copy).items() if name != claim.name}
    assert set(others.values()) <= {NONE}
    finding = found(study, copy, claim)
    assert set(finding.printed.effects) == {"1 layer", "2 layers: layer 2"}
    assert finding.printed.effects["1 layer"].effect == pytest.approx(1.0, abs=0.02)
    details = finding.details["1 layer, valley to end"]
    assert details[f"gone with {held} held"] == pytest.approx(1.0, abs=0.02)
    assert details["rise of the base (nats)"] == pytest.approx(RISE)
    assert (details["held thing off by"], details["held thing off by, control"]) == pytest.approx((0.05, 1.0))
    wide = made(run, gone={held: 0.5}, spread=0.05)
    assert found(study, wide, claim).verdict == "undecided"


def test_what_is_not_judged(module, run):
    study, (claim, held) = module.STUDY, next(iter(HELD[module.STUDY.name].items()))
    for changes, reason, command in (
        ({"rise": 0.0}, "no layer that the claim is about comes back by 0.05 nats beyond chance", "--scale paper"),
        ({"rise": 0.1, "spread": 0.2}, "beyond chance", "--scale paper"),
        ({"loss": 9.0}, "learned no more than how frequent words are", "--steps 20"),
        ({"off": 0.11}, "was not held in 1 layer: it was off by 11%, and 10% is allowed", "--refresh 1"),
    ):
        copy = made(run, **changes)
        assert set(verdicts(study, copy).values()) == {"not run"}, changes
        finding = found(study, copy, claim)
        assert reason in finding.reason
        assert finding.command.startswith("joma")
        assert command in finding.command

    for network in (f"2 layers, {held} held", f"2 layers, {held} pushed elsewhere"):

        def gone(name, step, value, network=network):
            return value * 0 + 3 if name == f"{network}/diverged_at" else value

        finding = found(study, changed(made(run), gone), claim)
        assert f"too many runs of {network} diverged: 0 are left" in finding.reason
        assert "--rate 0.00333333" in finding.command


def test_a_seed_that_diverged_is_left_out_and_counted(module, run, monkeypatch):
    claim, held = next(iter(HELD[module.STUDY.name].items()))
    twin = f"1 layer, {held} held"

    def lose(name, step, value):
        if name == f"{twin}/diverged_at":
            value[2] = 7
        if name == f"{twin}/valid/entropy" and step == 10:
            value[2] += 50.0
        return value

    copy = changed(made(run, gone={held: 1.0}, spread=1e-3), lose)
    assert np.isnan(record.entropies(copy, twin)).any((0, 2)).tolist() == [False, False, True]
    monkeypatch.setattr(_twin_claims, "FEWEST_SEEDS", 2)
    finding = found(module.STUDY, copy, claim)
    assert finding.printed.effects["1 layer"].effect == pytest.approx(1.0, abs=0.02)
    assert finding.details["diverged and left out"] == {f"runs of {twin}": 1.0}


def test_how_far_a_hold_is_off_is_of_the_layers_that_are_judged(module, run):
    held = next(iter(module.TWINS.holds))
    twin = f"2 layers, {held} held"

    def slips(name, step, value):
        if name == f"{twin}/held/miss" and step > 4:
            value[:, 0] = 0.8
        return value

    copy = changed(made(run, off=0.05), slips)
    for layers, off in (((0,), 0.8), ((1,), 0.05)):
        assert record.misses(copy, record.Case("2 layers", layers), twin) == pytest.approx(off)


def test_of_deep_networks_the_layers_that_come_back_are_judged_together(run, monkeypatch):
    rises = np.array([[0.4, 0.4, 0.4], [0.2, 0.21, 0.22], [-0.3, 0.2, 0.4], [0.1, 0.11, 0.12]])
    monkeypatch.setattr(record, "rises", lambda run, name: rises if name == "2 layers" else rises[2:3])
    assert record.judged_layers(run) == [record.Case("2 layers", (1, 3))]


def test_shares_are_of_the_mean_rise_so_that_no_seed_decides_that_hardly_rises(run, monkeypatch):
    rises = {"1 layer": np.array([[0.1, 0.2, 0.6]]), "twin": np.array([[0.0, 0.1, 0.3]])}
    monkeypatch.setattr(record, "rises", lambda run, name: rises[name])
    share = record.removed(run, record.Case("1 layer", (0,)), "twin")
    np.testing.assert_allclose(share, [0.1 / 0.3, 0.1 / 0.3, 1.0])


def test_the_fixed_batch_is_spread_over_all_that_is_read(config):
    class Read:
        def batch(self, step, members):
            return torch.full((2, 3), step), torch.full((2, 3), -1)

    assert record.fixed_batch(config, Read()).tolist() == [[step] * 3 for step in (0, 0, 4, 4, 9, 9)]


def test_what_slipped_is_not_drawn_and_said(module, run):
    first, *_ = module.TWINS.holds
    with house_style():
        (drawing,) = draw(module.STUDY, made(run, gone={first: 0.75}, off=0.2))
    assert f"could not be held: {first} in 1 layer (off by 20%)" in drawing.caption
    assert "removes" not in drawing.caption
    assert f"“{first}”" not in drawing.alt


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valley": 10}, "valley must lie between 0 and 10, where training ends, got 10"),
        ({"refresh": 3}, "refresh must divide the valley, 4, got 3"),
    ],
)
def test_what_a_config_refuses(changes, words):
    with pytest.raises(ValueError, match=words):
        small("dilution", **changes)
