"""The study of grokking's law: what networks are taught and read, and verdicts from records that are made up."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from records import found, verdicts

from joma.claims.execute import plain_config
from joma.runs import Run
from joma.studies.grokking import grokking_law as study
from joma.studies.grokking.grokking_law import PAIRS, SHUFFLED, STUDY, Members, crossing, narrow_name
from joma.theory.groups import group

CONFIG = replace(
    STUDY.quick, cyclic=("Z11", "Z23", "Z53"), others=("Z5xZ5", "D12"), factors=(0.8, 0.9, 1.0, 1.1, 1.2), hidden=64
)
LAW, NONE = "pairs-grow-like-m-ln-m", "not above its control"


def made(folder, *, law=lambda m: m * log(m), constants=None, spoil=None, config=CONFIG):
    """A record whose accuracy crosses one half, sharply, where pairs are those of the law, alike at order 23.

    constants: by group, as a multiple of what the law says. spoil: changes (what, name, cell, value) -> value.
    """
    run = Run.create(folder / "made.sqlite", study=STUDY.name, config=plain_config(config), version=STUDY.version)
    chance = np.linspace(-0.01, 0.01, config.seeds)
    cells, points = (*config.factors, SHUFFLED), (0, config.steps // 2, config.steps)
    for turn, (name, (of, hidden)) in enumerate(config.variants.items()):
        order = group(of).order
        pairs = law(order) * 23 * log(23) / law(23) if name in config.cyclic else order * log(order)
        middle = pairs / (order * log(order)) * (constants or {}).get(name, 1.0) * (1.1 if hidden < 20 else 1.0)
        for step in points:
            rows = {"train": [], "test": [], "focus": []}
            for cell in cells:
                own = np.roll(chance, turn)
                rises = 1 / (1 + np.exp(-60 * (float(cell) * (1 - own) - middle))) if cell != SHUFFLED else 0.02 + own
                values = {
                    "train": np.ones(config.seeds),
                    "test": rises if step else 0 * own,
                    "focus": (0.97 if cell == config.factors[-1] else 0.2) + own if step else 0.2 + own,
                }
                for what, value in values.items():
                    rows[what].append(spoil(what, name, cell, value, step) if spoil else value)
            for what, values in rows.items():
                run.append(f"{name}/read/{what}", step, np.concatenate(values))
    return run


def test_a_record_that_follows_the_law_holds(tmp_path):
    with made(tmp_path) as run:
        assert set(verdicts(STUDY, run).values()) == {"holds"}
        for name in CONFIG.cyclic:
            assert crossing(run, name) == pytest.approx(np.ones(CONFIG.seeds), abs=0.03)


@pytest.mark.parametrize("rival", study.RIVALS)
def test_pairs_that_follow_a_rival_do_not_hold(rival, tmp_path):
    wide = replace(CONFIG, factors=tuple(np.round(np.arange(0.3, 2.4, 0.1), 1)), cyclic=("Z23", "Z31", "Z71"))
    with made(tmp_path, law=study.RIVALS[rival], config=wide) as run:
        finding = found(STUDY, run, LAW)
    assert finding.printed.effects[f"rival {rival}"].difference_interval[1] < 0
    assert finding.verdict in {"mixed", "fails", NONE, "undecided", "only qualitative"}


@pytest.mark.parametrize("off", [0.85, 1.17])
def test_a_constant_that_is_off_is_seen_in_its_group_alone(off, tmp_path):
    with made(tmp_path, constants={"D12": off}) as run:
        judged = verdicts(STUDY, run)
        assert judged["other-groups"] != "holds"
        assert judged["constant"] == "holds"
    (tmp_path / "made.sqlite").unlink()
    with made(tmp_path, constants={"Z53": off}) as run:
        judged = verdicts(STUDY, run)
        assert judged["constant"] != "holds"
        assert judged["other-groups"] == "holds"


def test_orders_that_cannot_tell_the_law_from_its_nearest_rival_leave_it_to_paper_scale(tmp_path):
    with made(tmp_path, config=replace(CONFIG, cyclic=("Z11", "Z17", "Z23"))) as run:
        assert found(STUDY, run, LAW).verdict == "at paper scale"


def _where(wanted, replacement, at=None):
    def spoil(what, name, cell, value, step):
        fits = wanted[:2] == (what, name) and cell in wanted[2:] and at in (None, step)
        return replacement(value) if fits else value

    return spoil


LOW, HIGH, HALF_TIME = CONFIG.factors[0], CONFIG.factors[-1], CONFIG.steps // 2


@pytest.mark.parametrize(
    ("spoil", "claim", "verdict"),
    [
        (_where(("test", "Z11", HIGH), lambda x: 0 * x), "constant", "only qualitative"),
        (_where(("test", "Z11", LOW), lambda x: 0 * x + 1), "constant", "undecided"),
        (_where(("test", "Z11", 1.0, 1.1), lambda x: 0 * x, HALF_TIME), "constant", "undecided"),
        (_where(("test", "Z53", 1.0, 1.1), lambda x: 0 * x, HALF_TIME), LAW, "undecided"),
        (_where(("test", "D12", 1.0, 1.1), lambda x: 0 * x, HALF_TIME), "other-groups", "undecided"),
        (_where(("test", "D12", LOW), lambda x: 0 * x + 0.2), "fewer-are-memorised", "only qualitative"),
        (_where(("test", "D12", SHUFFLED), lambda x: x - 0.02), "fewer-are-memorised", "holds"),
        (_where(("train", "D12", LOW), lambda x: 0 * x + 0.98), "fewer-are-memorised", "only qualitative"),
        (_where(("train", "D12", HIGH), lambda x: 0 * x + 0.98), "fewer-are-memorised", "not run"),
        (_where(("train", "D12", HIGH), lambda x: 0 * x + np.nan), "constant", "not run"),
        (_where(("focus", "Z53", HIGH), lambda x: x - 0.2), "nodes-are-representations", "only qualitative"),
        (_where(("focus", "Z53", SHUFFLED), lambda x: x + 0.77), "nodes-are-representations", "only qualitative"),
        (_where(("focus", "Z53", LOW), lambda x: x + 0.35), "memories-are-not-representations", "only qualitative"),
        (_where(("focus", "Z53", LOW), lambda x: x + 0.77), "memories-are-not-representations", "only qualitative"),
        (_where(("test", "Z11", 1.0, 1.1), lambda x: 0 * x), "width-helps", NONE),
    ],
)  # fmt: skip
def test_a_spoiled_record_changes_its_verdict(spoil, claim, verdict, tmp_path):
    with made(tmp_path, spoil=spoil) as run:
        finding = found(STUDY, run, claim)
    assert finding.verdict == verdict, finding.measured


def test_what_networks_are_taught():
    config = replace(STUDY.quick, cyclic=("Z5", "Z7", "Z9"), others=("D3",), factors=(0.4, 0.7, 0.9), seeds=2)
    members = Members(config, "Z7", 4)
    everyone = range(len(members.grid))
    pairs, targets, taught = members.first_pairs(everyone, 49)
    assert taught.sum(1).tolist() == [count for count in (15, 26, 34, 34) for _ in range(2)]
    assert [round(PAIRS * factor * 7 * log(7)) for factor in config.factors] == [15, 26, 34]
    for member, cell in enumerate(members.grid.cell):
        products = dict(zip(map(tuple, pairs[member].tolist()), targets[member].argmax(-1).tolist(), strict=True))
        assert len(products) == 49
        right = [product == (a + b) % 7 for (a, b), product in products.items()]
        assert all(right) == (cell != SHUFFLED)
        assert sorted(products.values()) == sorted(list(range(7)) * 7)  # shuffled: each product as often
    assert targets.sum(-1).abs().max() < 1e-6
    assert (pairs[0] == pairs[2]).all()  # the same seed reads in the same order with more pairs
    assert not (pairs[0] == pairs[1]).all()
    few, _, some = members.taught_pairs((0, 1))
    assert few.shape == (2, 15, 2)
    assert some.all()


def test_networks_are_those_of_two_one_hot_vectors():
    networks = study.GroupNetworks(5, 6, [3, 4])
    pairs = torch.tensor([[0, 0], [1, 4], [3, 2]]).expand(2, 3, 2)
    one_hot = torch.eye(5)
    inputs = torch.cat([one_hot[pairs[..., 0]], one_hot[pairs[..., 1]]], -1)
    scores = (inputs @ networks.read).square() @ networks.write
    assert torch.allclose(networks(pairs), scores - scores.mean(-1, keepdim=True), atol=1e-6)
    alone = study.GroupNetworks(5, 6, [4])
    assert torch.equal(alone.read[0], networks.read[1])
    targets, taught = torch.eye(5)[pairs.sum(-1) % 5], torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    square = ((networks(pairs) - targets) ** 2).sum(-1)
    assert torch.allclose(study.mean_square(networks, (pairs, targets, taught))[0], square[0, :2].mean())


def test_nodes_of_one_frequency_are_focused_and_others_share():
    members = Members(replace(STUDY.quick, cyclic=("Z5", "Z7", "Z9"), others=("D3",), factors=(0.4, 0.7, 0.9)), "Z7", 2)
    at = 2 * torch.pi * torch.arange(7.0) / 7
    pure = torch.cat([torch.cos(2 * at + 1), torch.sin(2 * at)])
    both = torch.cat([torch.cos(at), torch.cos(3 * at)])
    constant = torch.ones(14)
    assert members.focus(torch.stack([pure, pure], 1)[None]).item() == pytest.approx(1.0)
    assert members.focus(torch.stack([both + constant, both], 1)[None]).item() == pytest.approx(0.5)
    assert members.focus(torch.stack([2 * pure, 1 * both], 1)[None]).item() == pytest.approx((4 + 0.5) / 5)


def test_accuracies_are_of_taught_and_of_other_pairs():
    config = replace(STUDY.quick, cyclic=("Z5", "Z7", "Z9"), others=("D3",), factors=(0.4, 0.7, 0.9), seeds=2)
    members = Members(config, "Z5", 3)
    _, targets, taught = members.first_pairs((0, 1), 25)

    class Knows:
        read = torch.randn(2, 10, 3)

        def __call__(self, given):
            scores = targets.clone()
            scores[0, 12:] = scores[0, 12:].roll(1, -1)  # member 0 errs on all pairs from the 12th on
            return scores

    seen = members.look(Knows(), (0, 1))
    count = int(taught[0].sum())
    assert seen["train"].tolist() == pytest.approx([1.0, 1.0])
    assert seen["test"].tolist() == pytest.approx([(12 - count) / (25 - count), 1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": (1.0, 0.9, 1.2)}, "must be at least 3 values that rise"),
        ({"factors": (1.0, 1.1, 2.0)}, r"below 1\.\d+, or Z11 has no pair left"),
        ({"cyclic": ("Z11", "Z13", "S4")}, "a group is called"),
        ({"widths": (16, 64), "hidden": 64}, "widths must be others than hidden, 64"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_names_of_narrow_networks():
    assert narrow_name("Z11", 16) in CONFIG.variants
    assert CONFIG.variants[narrow_name("Z11", 16)] == ("Z11", 16)
