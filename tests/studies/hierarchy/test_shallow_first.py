"""The study of Section 5: verdicts follow who leads from the start and who learned, and a killed run goes on."""

import numpy as np
import pytest
from records import found, verdicts
from studies.hierarchy.shallow_first_records import (
    CHANCE,
    CLASS,
    EVERY,
    OF_DATA,
    PERMUTED,
    TOKEN,
    TRUE,
    ideal,
    reversed_heights,
    rewritten,
    spoiled,
)

from joma.claims.execute import judge
from joma.figures.style import house_style
from joma.studies.hierarchy.shallow_first import study as claims
from joma.studies.hierarchy.shallow_first.study import STUDY


@pytest.fixture(scope="module")
def run(shallow_first_run):
    return shallow_first_run


def test_an_untrained_network_is_no_evidence(run, tmp_path):
    stopped = rewritten(run, tmp_path / "stopped", lambda name, values: np.repeat(values[:1], len(values), 0))
    assert {name for name, verdict in verdicts(STUDY, stopped).items() if verdict != "not run"} == OF_DATA


def test_a_record_as_the_paper_tells_it_holds(run, tmp_path):
    seen = verdicts(STUDY, rewritten(run, tmp_path / "ideal", ideal))
    assert {name: verdict for name, verdict in seen.items() if name not in OF_DATA and verdict != "holds"} == {}


def test_where_the_query_alone_tells_less_is_enough(run, tmp_path):
    at = f"{claims.SHALLOW}/train_loss"
    change = lambda name, values: (
        np.full_like(values, 0.997 * CHANCE[claims.SHALLOW]) if name == at else ideal(name, values)
    )
    assert verdicts(STUDY, rewritten(run, tmp_path / "r", change))["hierarchy-agnostic"] == "holds"


START = ("attention-first", "weights-first")


def test_a_shallow_latent_must_give_the_lead_of_the_deep_tree(run, tmp_path):
    def half(values):
        values[:, :, TRUE, :3] = 1 + 0.5 * (values[:, :, TRUE, :3] - 1)

    for name, networks, spoil, verdict in (
        ("half", [claims.SHALLOW], half, "only qualitative"),
        ("deep", [TOKEN], half, "only qualitative"),
        ("both", [TOKEN, claims.SHALLOW], half, "holds"),
        ("other way", [claims.SHALLOW], reversed_heights, "fails"),
    ):
        assert spoiled(run, tmp_path / name, *networks, spoil=spoil)["hierarchy-agnostic"] == verdict, name


def test_where_only_the_class_is_told_otherwise_it_holds_as_corrected(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", CLASS, spoil=reversed_heights)
    assert {seen[name] for name in START} == {"holds as corrected"}
    assert seen["reaches-out"] == "mixed"


def test_where_only_the_token_is_told_otherwise_the_class_alone_does_not_carry_it(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", TOKEN, spoil=reversed_heights)
    assert {seen[name] for name in (*START, "reaches-out")} == {"mixed"}


def test_the_opposite_order_fails(run, tmp_path):
    seen = spoiled(run, tmp_path / "r", *EVERY, spoil=reversed_heights)
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
    claims.SHALLOW: ("hierarchy-agnostic",),
}


@pytest.mark.parametrize("network", NEEDS)
def test_claims_on_a_network_that_did_not_learn_are_not_run(run, tmp_path, network):
    def change(name, values):
        return (
            np.full_like(values, (0.9985 if network == claims.SHALLOW else 0.995) * CHANCE[network])
            if name == f"{network}/train_loss"
            else ideal(name, values)
        )

    seen = rewritten(run, tmp_path / "r", change)
    assert {name for name, verdict in verdicts(STUDY, seen).items() if verdict == "not run"} == set(NEEDS[network])
    for finding in judge(STUDY, seen):
        if finding.verdict == "not run":
            assert finding.command == "joma verify shallow-first --scale paper"
            assert "networks learned their task" in finding.reason


def test_what_the_permuted_tree_shows_as_well_proves_nothing(run, tmp_path):
    def both(values):
        values[:, :, PERMUTED] = values[:, :, TRUE] + 1e-6 * np.random.default_rng(1).normal(size=values[:, :, 0].shape)

    seen = spoiled(run, tmp_path / "r", *EVERY, spoil=both, further=1)
    others = {name: verdict for name, verdict in seen.items() if name not in OF_DATA}
    assert others.pop("bottom-up") == "not run"  # it tells no height from the next
    assert set(others.values()) == {"not above its control"}


def test_a_mean_that_few_pairs_carry_is_only_qualitative(run, tmp_path):
    def unordered(values):
        values[:, :, :, claims.ORDER] = 1e-6 * np.random.default_rng(1).normal(size=values.shape[:3])

    seen = spoiled(run, tmp_path / "all", *EVERY, spoil=unordered)
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
    seen = spoiled(run, tmp_path / "small", *EVERY, spoil=small)
    assert {seen[name] for name in first} == {"only qualitative"}
    seen = spoiled(run, tmp_path / "unsteady", *EVERY, spoil=unsteady)
    assert {seen[name] for name in first} == {"undecided"}


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
