"""What brings attention back, on a made-up language: what is recorded, and that its judges can be turned."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from records import changed, copied, found, verdicts
from small_runs import small

from joma.data.text import Corpus
from joma.models.groups import parameter_groups
from joma.recipes.language import corpus, ensemble
from joma.recipes.language import curves as recorded
from joma.runs import Run
from joma.studies.rebound.rebound_cause import run as record
from joma.studies.rebound.rebound_cause import study as claims
from joma.studies.rebound.rebound_cause.run import BLOCK
from joma.studies.rebound.rebound_cause.study import STUDY
from joma.training import train_all

NONE = "not above its control"
TWINS = {
    "needs-qk-to-move": "QK", "needs-mlp-to-move": BLOCK, "first-layer-needs-embeddings": "embeddings",
    "needs-lower-mlp-to-move": "MLP",
}  # fmt: skip
RISE = 0.4  # of a layer that comes back, in records that are made up


def made(run, path, *, rise=RISE, twins=None, split=None, spread=0.01, gap=0.0, until=99, loss=1.0, error=0.0):
    """A copy in which every layer falls by 1 and rises by `rise`; twins by what is frozen rise by theirs.

    split: the parts of the way back by kind of weights, own QK all of it unless said. gap: what parts miss in each
    interval up to step `until`. spread: by how much seeds differ. error: the numerical errors of all parts of a way,
    or those of every seed.
    """
    split = {"own QK": rise, **(split or {})}
    groups = {}

    def level(name, step, back):
        return 2.5 - min(step, 4) / 4 + max(step - 4, 0) / 10 * back

    def change(name, step, value):
        variant, _, what = name.partition("/")
        frozen = variant.partition(", ")[2].removesuffix(" frozen")
        seeds = spread * (np.arange(len(value)) - 1) if np.ndim(value) else 0.0
        if what == "groups":
            groups[variant] = json.loads(bytes(value).decode())
        if what == "valid/loss":
            return value * 0 + (9.0 if step == 0 else loss)
        if what == "valid/entropy":
            back = (twins or {}).get(frozen, rise) + seeds[:, None, None] * (-1 if variant.endswith("frozen") else 1)
            return level(name, step, back) + 0 * value
        if what == "allocation/part_errors":  # through one group, the same in every interval
            ways = run.steps(name) > record.valley_of(run, variant)
            value, after = np.zeros_like(value), step > record.valley_of(run, variant)
            value[:, 0] = np.reshape(error, (-1, 1)) / (ways.sum() if after else max((~ways).sum() - 1, 1))
            return value
        if what in ("allocation/change", "allocation/parts") and step:
            valley, at = record.valley_of(run, variant), run.steps(name).tolist()
            gone = step - at[at.index(step) - 1]
            share = gone / (14 - valley) if step > valley else -gone / valley
            parts = parts_made(groups[variant], value.shape[-1], split if step > valley else {"own QK": 1.0}, seeds)
            return share * parts if what.endswith("parts") else share * parts.sum(1) + gap * (step <= until)
        return value

    return copied(run, path, change)


def parts_made(groups, layers, split, seeds):
    """(seeds, groups, layers): each kind's part through the first group of that kind, with seeds in another order."""
    made = np.zeros((len(seeds), len(groups), layers))
    for layer in range(layers):
        kinds = [record.kind_of(group, layer + 1) for group in groups]
        for turn, (kind, part) in enumerate(split.items()):
            if kind in kinds:
                made[:, kinds.index(kind), layer] = part + np.roll(seeds, turn)
    return made


def test_parts_add_up_and_what_attention_cannot_see_has_none(run):
    for variant in ("1 layer", "2 layers", "2 layers, no MLP", "2 layers, identity", "2 layers, no residual"):
        for way in ("down", "back"):
            split, change = (of(run, variant, way) for of in (record.parts_of_way, record.change_of_way))
            assert (split[record.BLIND] == 0).all()
            np.testing.assert_allclose(sum(split.values()), change, atol=5e-3)
            for kind in record.KINDS[2:]:
                assert (split[kind][0] == 0).all(), "nothing lies below a first layer"
            assert np.abs(split["own QK"]).min() > 0
    assert np.abs(record.parts_of_way(run, "2 layers", "back")["lower MLP"][1]).min() > 0
    assert not record.parts_of_way(run, "2 layers, no MLP", "back")["lower MLP"].any()


def test_seeds_that_diverged_have_no_parts_and_no_entropy(run):
    def lose(name, step, value):
        return np.where(np.arange(3) == 1, 3, value) if name == "2 layers/diverged_at" and step else value

    lost = changed(run, lose)
    for what in ("parts", "part_errors"):
        for kind in ("own QK", "embeddings"):
            known = np.isfinite(record.parts(lost, "2 layers", what)[kind])  # (layers, seeds, points)
            assert known.all((0, 2)).tolist() == [True, False, True]
            assert not known[:, 1].any()
    assert np.isnan(record.rises(lost, "2 layers")).all(0).tolist() == [False, True, False]
    assert np.isfinite(record.rises(lost, "1 layer")).all()


def test_twins_leave_their_base_at_the_valley(run):
    for base in ("1 layer", "2 layers"):
        whole = recorded.curve(run, base, "valid/entropy")[0]
        alone = ["MLP", "layer 1 MLP"] if base == "2 layers" else []
        assert record.frozen_in(run, base) == ["QK", BLOCK, "embeddings", *alone]
        for frozen in record.frozen_in(run, base):
            twin = f"{base}, {frozen} frozen"
            assert recorded.steps_of(run, twin).tolist() == [4, 8, 12, 14]
            twins = recorded.curve(run, twin, "valid/entropy")[0]
            np.testing.assert_array_equal(twins[:, 0], whole[:, 2])
            assert np.abs(twins[:, 1:] - whole[:, 3:]).min() > 0
    assert "2 layers, no MLP, QK frozen/valid/entropy" not in run


def test_whose_weights_bring_a_layer_back(run, tmp_path):
    cases = [
        ({}, "holds"),
        ({"own QK": 0.0, "embeddings": 0.4, "lower MLP": 0.3}, "fails"),
        ({"own QK": 0.2, "embeddings": 0.2}, NONE),
        ({"own QK": 0.21, "embeddings": 0.18}, "only qualitative"),
    ]
    for place, (split, verdict) in enumerate(cases):
        of = verdicts(STUDY, made(run, tmp_path / f"{place}.sqlite", split=split, spread=1e-4))
        assert of["own-qk-first-layer"] == of["own-qk-higher-layers"] == verdict, split
    noisy = made(run, tmp_path / "noisy.sqlite", split={"own QK": 0.2, "embeddings": -0.1}, spread=0.05)
    assert found(STUDY, noisy, "own-qk-first-layer").printed.effects["1 layer"].difference == pytest.approx(0.3)


def test_which_weights_below_bring_a_higher_layer_back(run, tmp_path):
    cases = [
        ({"own QK": -0.2, "lower MLP": 0.5, "embeddings": 0.1}, "holds"),
        ({"own QK": -0.2, "lower MLP": 0.3, "lower norms": 0.3}, NONE),
        ({"own QK": -0.2, "lower MLP": 0.1, "embeddings": 0.5}, "fails"),
    ]
    for place, (split, verdict) in enumerate(cases):
        copy = made(run, tmp_path / f"{place}.sqlite", split=split, spread=1e-4)
        assert verdicts(STUDY, copy)["higher-layers-by-lower-mlp"] == verdict, split


@pytest.mark.parametrize(("claim", "frozen"), TWINS.items())
def test_what_must_move_for_attention_to_come_back(run, tmp_path, claim, frozen):
    for left, verdict in ((0.0, "holds"), (0.2, "only qualitative"), (RISE, NONE), (0.8, "fails")):
        copy = made(run, tmp_path / f"{left}.sqlite", twins={frozen: left}, spread=1e-3)
        of = verdicts(STUDY, copy)
        assert of[claim] == verdict
        assert {of[other] for other in TWINS if other != claim} == {NONE}
    cases = set(found(STUDY, copy, claim).printed.effects)
    higher = set() if claim == "first-layer-needs-embeddings" else {"2 layers: layer 2"}
    first = set() if claim == "needs-lower-mlp-to-move" else {"1 layer", "2 layers: layer 1"}
    assert cases == first | higher
    wide = made(run, tmp_path / "wide.sqlite", twins={frozen: 0.35}, spread=0.05)
    assert verdicts(STUDY, wide)[claim] == "undecided"


def test_layers_that_come_back_without_a_twin_are_not_judged_by_it(run, tmp_path):
    whole = made(run, tmp_path / "a.sqlite")

    class Untwinned(changed):
        def __contains__(self, name):
            return "MLP frozen" not in name and name in self.run

    bare = Untwinned(whole, lambda name, step, value: value)
    finding = found(STUDY, bare, "needs-lower-mlp-to-move")
    assert (finding.verdict, finding.reason) == ("not run", "no network has a branch with MLP frozen")


def test_only_what_numerical_errors_cannot_explain_counts(run, tmp_path):
    own, below = "own-qk-higher-layers", "higher-layers-by-lower-mlp"
    large = np.array([0.4, 0.4, 0.2995])  # more than all but a trace of one seed
    wins, loses = {"own QK": 0.3, "lower MLP": 0.0}, {"own QK": 0.0, "lower MLP": 0.3}
    for place, (split, error, of_own, of_below) in enumerate(
        (
            (wins, 0.0, "holds", "fails"),
            (wins, 0.2, "holds", "fails"),
            (wins, 0.29, "only qualitative", NONE),
            (wins, large, NONE, NONE),
            (wins, 0.4, "undecided", "undecided"),  # nothing is left, of three seeds
            (loses, 0.2, "fails", "holds"),
            (loses, 0.29, NONE, "only qualitative"),
            (loses, large, NONE, NONE),
        )
    ):
        copy = made(run, tmp_path / f"{place}.sqlite", split=split, error=error, spread=1e-4)
        of = verdicts(STUDY, copy)
        assert (of[own], of[below]) == (of_own, of_below), (split, error)
        said = found(STUDY, copy, "own-qk-higher-layers").details["numerical error of parts, together"]
        assert said["2 layers: layer 2"] == pytest.approx(np.mean(error))


def test_parts_that_do_not_close_or_come_from_nowhere(run, tmp_path):
    for place, (changes, verdict) in enumerate(
        (
            ({}, "holds"),
            ({"gap": 2e-3}, "fails"),
            ({"gap": 2e-3, "until": 4}, "only qualitative"),
            ({"gap": 1e-4}, "holds"),
            ({"split": {record.BLIND: 1e-9}}, "fails"),
            ({"rise": 0.0, "split": {"own QK": 0.0}}, "holds"),
        )
    ):
        copy = made(run, tmp_path / f"{place}.sqlite", **changes)
        assert verdicts(STUDY, copy)["parts-close"] == verdict, changes


def test_parts_close_only_where_every_network_would_show_that_one_is_missing(run, tmp_path):
    whole = made(run, tmp_path / "a.sqlite")
    groups = json.loads(bytes(run.value("1 layer/groups")).decode())
    own, other = groups.index("layer 1 QK"), groups.index("embeddings")

    def moved(name, step, value):
        """With one layer all changes come through embeddings: the parts close without queries and keys as well."""
        if name == "1 layer/allocation/parts":
            value[:, other] += value[:, own]
            value[:, own] = 0.0
        return value

    assert verdicts(STUDY, whole)["parts-close"] == "holds"
    finding = found(STUDY, changed(whole, moved), "parts-close")
    assert finding.verdict == NONE


def test_layers_that_fall_on_and_networks_that_learned_nothing_are_not_judged(run, tmp_path):
    for name, changes, reason in (
        ("flat", {"rise": 0.0}, "no layer that the claim is about comes back by 0.05 nats beyond chance"),
        ("small", {"rise": 0.04, "spread": 1e-4}, "the largest rebound, from the minimum to the end, is 0.040 nats"),
        ("chance", {"rise": 0.1, "spread": 0.2}, "beyond chance"),
        ("idle", {"loss": 9.0}, "learned no more than how frequent words are"),
    ):
        copy = made(run, tmp_path / f"{name}.sqlite", **changes)
        of = verdicts(STUDY, copy)
        assert {of[claim] for claim in ("own-qk-first-layer", "own-qk-higher-layers", *TWINS)} == {"not run"}, name
        assert reason in found(STUDY, copy, "own-qk-first-layer").reason


def test_networks_of_one_layer_leave_claims_on_higher_layers_to_paper_scale(run, tmp_path, monkeypatch):
    shallow = made(run, tmp_path / "a.sqlite", rise=0.0)
    monkeypatch.setitem(shallow.config, "layers", [1])
    of = verdicts(STUDY, shallow)
    higher = {"own-qk-higher-layers", "higher-layers-by-lower-mlp", "needs-lower-mlp-to-move"}
    assert {name for name, verdict in of.items() if verdict == "at paper scale"} == higher
    assert of["own-qk-first-layer"] == "not run"


def test_networks_that_diverged_are_said(run, tmp_path):
    def gone(name, step, value):
        return value * 0 + 3 if name == "2 layers, QK frozen/diverged_at" else value

    finding = found(STUDY, changed(made(run, tmp_path / "a.sqlite"), gone), "needs-qk-to-move")
    assert finding.verdict == "not run"
    assert "too many runs of 2 layers, QK frozen diverged: 0 are left" in finding.reason


def test_a_run_without_twins_of_mlps_has_no_figure_of_them(run, monkeypatch):
    for name in ("draw_parts", "draw_bars", "draw_twins", "draw_mlp_twins"):
        monkeypatch.setattr(claims, name, lambda run, name=name: name)
    assert claims.draw(run)[-2:] == ["draw_twins", "draw_mlp_twins"]
    monkeypatch.setattr(record, "frozen_in", lambda run, base: list(record.FROZEN))
    assert claims.draw(run) == ["draw_parts", "draw_bars", "draw_twins"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valley": 14}, "valley must be below 14, where training ends, got 14"),
        (
            {"twins": (1, 5)},
            "mlp_twins needs a depth from 2 to 9 among layers and twins, got layers 1, 2 and twins 1, 5",
        ),
        (
            {"layers": (1,), "mlp_twins": False},
            "altered needs 2 among the layers and more than 12 steps, got layers 1 and 14 steps",
        ),
        ({"steps": 12}, "altered needs 2 among the layers and more than 12 steps, got layers 1, 2 and 12 steps"),
    ],
)
def test_what_a_config_refuses(changes, words):
    with pytest.raises(ValueError, match=words):
        small("rebound-cause", **changes)


def test_higher_layers_are_taken_together_where_only_their_mean_comes_back(run, monkeypatch):
    by_turns = np.array([[-0.4, -0.4, -0.4], [0.5, 0.01, -0.21], [-0.3, 0.2, 0.42]])
    rises = {"1 layer": by_turns[:1], "2 layers": by_turns}
    monkeypatch.setattr(record, "rises", lambda run, name: rises[name])
    assert record.first_layers(run) == []
    assert record.higher_layers(run) == [record.Case("2 layers", (1, 2))]
    by_turns[2] = [0.2, 0.21, 0.22]
    assert record.higher_layers(run) == [record.Case("2 layers", (2,))]
    by_turns[1:] = -0.1
    assert record.higher_layers(run) == []


def test_the_networks_of_the_paper_scale():
    text = Corpus("x", tuple(map(str, range(50))), {"train": torch.zeros(40_000, dtype=torch.int32)}, "")
    variants = record.plan(STUDY.paper, text)
    alone = [name for name in variants if re.search(r"(layers|layer \d), (layer \d )?MLP frozen", name)]
    assert alone == [
        "2 layers, MLP frozen", "2 layers, layer 1 MLP frozen",
        "5 layers, MLP frozen", *(f"5 layers, layer {n} MLP frozen" for n in (1, 2, 3, 4)),
    ]  # fmt: skip
    assert variants["5 layers, layer 3 MLP frozen"].frozen == ("layer 3 MLP",)
    assert variants["5 layers, MLP frozen"].frozen == ("MLP",)
    assert {variant.own_order for variant in variants.values()} == {True}
    assert {variant.seeds[0] for variant in variants.values()} == {40}
    twins = {name: variant for name, variant in variants.items() if variant.branch_of}
    assert all(name.startswith(twin.branch_of) and twin.branch_at == 2_000 for name, twin in twins.items())
    assert not any("MLP frozen" in name for name in record.plan(STUDY.quick, text)), "quick scale stays quick"
    # What it costs beside the first version: steps of networks, whatever their depth.
    work = {name: (one.steps - one.branch_at) * len(one.seeds) for name, one in variants.items()}
    assert sum(work.values()) < 1.5 * sum(cost for name, cost in work.items() if name not in alone)


STAYS = {
    "MLP": r"layer \d MLP", "layer 1 MLP": "layer 1 MLP", "layer 2 MLP": "layer 2 MLP", "QK": r"layer \d QK",
    BLOCK: r"layer \d (value and output|MLP|norms)", "embeddings": "embeddings",
}  # fmt: skip
"""By what a twin has frozen: the groups of weights that stay."""


@pytest.mark.parametrize("frozen", STAYS)
def test_what_is_frozen_stays_and_all_else_moves(data_folder, tmp_path, frozen):
    config = small("rebound-cause", layers=(3,), twins=(3,), altered=False, data=str(data_folder))
    text = corpus(config)
    groups = parameter_groups(record.plan(config, text)["3 layers"].decoder, by_layer=True)

    def weights(decoder, members):
        named = dict(decoder.named_parameters())
        parts = {
            group: [named[part] if isinstance(part, str) else named[part[0]][part[1]] for part in some]
            for group, some in groups.items()
        }
        return {group: torch.cat([part.flatten(1) for part in some], 1) for group, some in parts.items()}

    names = ("3 layers", f"3 layers, {frozen} frozen")
    plain = {name: ensemble(record.plan(config, text)[name].with_(allocate=0), text) for name in names}
    with Run.create(tmp_path / "run.sqlite", study="x", config={}) as run:
        train_all({name: replace(one, measures={"weights": weights}) for name, one in plain.items()}, run)
        for group in groups:
            base, twin = (run.array(f"{name}/weights/{group}") for name in names)
            np.testing.assert_array_equal(twin[0], base[run.steps(f"{names[0]}/weights/{group}").tolist().index(4)])
            moved = np.abs(twin[-1] - twin[0]).max(1)
            assert not moved.any() if re.fullmatch(STAYS[frozen], group) else moved.all(), group


def test_a_layer_comes_back_if_its_rise_matters_and_is_beyond_chance():
    rise = np.array([0.03, 0.05, 0.07, 0.05, 0.06, 0.05])  # 0.052 in the mean, known to about 0.014
    assert record.comes_back(rise)
    assert not record.comes_back(rise - 0.01), "too small to matter"
    assert not record.comes_back(rise + np.array([-0.5, 0.5, -0.5, 0.5, -0.5, 0.5])), "chance"


def test_kinds_and_names_of_cases():
    assert record.kind_of("last norm", 1) == record.kind_of("layer 3 QK", 2) == record.BLIND
    assert record.kind_of("layer 12 norms", 13) == "lower norms"
    assert record.Case("5 layers", (1, 2, 4)).name == "5 layers: layers 2 to 3, 5"
    assert record.Case("1 layer", (0,)).name == "1 layer"
