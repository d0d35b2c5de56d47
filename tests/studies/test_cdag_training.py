"""CDAG Theorem 1 in training: signals against autograd and numpy, the verdicts, and that they follow the numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import altered, carried_out, verdicts

from joma.runs import Run
from joma.studies import _latent_mlp as net
from joma.studies import cdag_training
from joma.studies.contract import NotRun, silent
from joma.studies.drawing import house_style
from joma.studies.execute import judge, plain_config
from joma.theory import cdag
from joma.training import train_all

STUDY = cdag_training.STUDY
TINY = replace(STUDY.quick, classes=3, members=3, width=8, steps=30, batch=32, samples=500, held_out=400, points=4)
GOOD = {"holds", "holds as corrected"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return carried_out(STUDY, TINY, tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture
def example():
    """A network in float64 and data for it."""
    source = torch.Generator().manual_seed(0)
    network = net.LatentMLP([1, 2], 6, 5, 3, residual=True).double()
    x = torch.rand(2, 40, 6, generator=source, dtype=torch.float64)
    labels = torch.randint(3, (2, 40), generator=source)
    latents = (torch.rand(2, 40, 4, generator=source) < 0.5).double()
    return network, net.Data(x, labels, latents, torch.tensor([1, 1, 2, 2]))


def changed(run, path, **columns):
    """A copy of the run with columns of its counts set, at all points but the first."""
    copy = Run.create(path, study=run.study, config=run.config, version=run.version)
    for name in run.names():
        values = run.array(name)
        if name.endswith("counts"):
            values[0, :, net.COLUMNS.index("gated positive")] = 0  # an untrained gate is open too often
            for column, value in columns.items():
                values[1:, :, net.COLUMNS.index(column.replace("_", " "))] = value
        for step, value in zip(run.steps(name), values, strict=True):
            copy.append(name, int(step), value)
    return copy


def test_one_finding_a_claim(run):
    found = judge(STUDY, run)
    assert [finding.claim for finding in found] == list(STUDY.claims)
    assert all(finding.control for finding in found)


def test_nothing_holds_of_an_untrained_network(run, tmp_path):
    copy = Run.create(tmp_path / "stopped", study=run.study, config=run.config, version=run.version)
    for name in run.names():
        for step in run.steps(name):
            copy.append(name, int(step), run.at(name, 0))
    assert not GOOD & set(verdicts(STUDY, copy).values())


def test_nothing_holds_at_rate_zero(tmp_path):
    assert not GOOD & set(
        verdicts(STUDY, carried_out(STUDY, replace(TINY, rate=0.0, steps=4), tmp_path / "r")).values()
    )


def test_networks_that_diverge_are_left_out_and_counted(run, tmp_path):
    copy = Run.create(tmp_path / "one", study=run.study, config=run.config, version=run.version)
    for name in run.names():
        for step in run.steps(name):
            value = run.at(name, int(step)).copy()
            if name in ("small start/counts", "small start/loss"):
                value[0] = np.nan
            if name == "small start/diverged_at":
                value[0] = 1
            copy.append(name, int(step), value)
    for finding in judge(STUDY, copy):
        assert "; 1 networks diverged" in finding.measured
        assert "nan" not in finding.measured
    gone = carried_out(STUDY, replace(TINY, rate=1e30, steps=8), tmp_path / "all")
    assert set(verdicts(STUDY, gone).values()) <= {"not above its control", "fails"}
    STUDY.draw(gone)


def test_a_record_without_a_violation_holds(run, tmp_path):
    good = {"signs": 100, "signs_positive": 100, "others": 100, "others_positive": 50, "edges": 100,
            "edges_with_the_rule": 100, "children": 20, "children_positive": 20, "other_children": 20,
            "other_children_positive": 10, "gated": 20, "gated_positive": 20, "other_gated": 20,
            "other_gated_positive": 10, "angles": 5, "direct_angles": 5, "C1_out": 0.9, "C1_first": 0.5,
            "C2_input": 0.9, "C2_second": 0.5, "C2_first": 0.9, "height_first": 1.0, "height_second": 1.5,
            "total": 100.0, "direct_total": 80.0}  # fmt: skip
    found = verdicts(STUDY, changed(run, tmp_path / "good", **good))
    assert {name: verdict for name, verdict in found.items() if verdict != "holds"} == {}
    one = verdicts(STUDY, changed(run, tmp_path / "one", **(good | {"signs_positive": 99})))
    assert one["signs-in-training"] == "only qualitative"
    same = verdicts(STUDY, changed(run, tmp_path / "same", **(good | {"others_positive": 100})))
    assert same["signs-in-training"] == "not above its control"


def test_figure_is_drawn(run):
    with house_style():
        assert [drawing.name for drawing in STUDY.draw(run)] == ["cdag-in-training"]


def test_resumes_to_the_same_numbers(run, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def killed(ensembles, run, *, progress):
        for name, ensemble in ensembles.items():
            if name == "residual":
                raise Killed
            train_all({name: ensemble}, run, progress=progress)

    again = Run.create(tmp_path / "again", study=STUDY.name, config=plain_config(TINY), version=STUDY.version)
    with monkeypatch.context() as patched:
        patched.setattr(cdag_training, "train_all", killed)
        with pytest.raises(Killed):
            STUDY.run(TINY, again, silent)
    STUDY.run(TINY, again, silent)
    for name in run.names():
        np.testing.assert_array_equal(again.array(name), run.array(name), err_msg=name)


def test_without_a_gpu_the_paper_scale_says_how_to_run_it(run):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(NotRun, match="joma verify cdag --scale paper"):
        STUDY.run(STUDY.paper, run, silent)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"members": 1}, "at least 2"), ({"rho": 1.0}, "between 0 and 1"), ({"held_out": 3}, "at least 100"),
     ({"branching": (50, 50)}, "make 12500 tokens, at most 4096")],
)  # fmt: skip
def test_bad_configs_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(STUDY.quick, **changes)


def test_the_moment_of_learning(run, tmp_path):
    falling = np.linspace(1, 0, len(run.steps("residual/loss")))
    at = iter(falling)
    copy = altered(run, tmp_path / "falling", "residual/loss", lambda value: np.full_like(value, next(at)))
    expected = (falling <= 0.9) & (falling >= 0.1)
    assert (cdag_training.learning(copy, "residual") == expected[:, None]).all()
    flat = altered(run, tmp_path / "flat", "residual/loss", np.ones_like)
    assert cdag_training.learning(flat, "residual").sum(0).tolist() == [1, 1, 1]
    assert cdag_training.learning(flat, "residual")[-1].all()


def test_signals_follow_the_note(example):
    """delta_k = sigma' sum_j w_jk delta_j, with ascent's sign at the top: label minus probability."""
    network, data = example
    f, g, delta = net.signals(network, data.x, data.labels)
    label = torch.nn.functional.one_hot(data.labels, 3)
    torch.testing.assert_close(delta[2], label - f[2].softmax(-1))
    torch.testing.assert_close(g[1], delta[2] @ network.out.mT)
    torch.testing.assert_close(g[0], delta[1] @ network.second.mT + delta[2] @ network.out.mT)
    torch.testing.assert_close(delta[0], g[0] * (f[0] > 0))


def test_counts_against_plain_loops(example):
    network, data = example
    found = dict(zip(net.COLUMNS, net.measure(network, data).T.tolist(), strict=True))
    seen = net.signals(network, data.x, data.labels)

    def corr(x, y):
        return np.corrcoef(x, y)[0, 1] if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0

    for member in range(2):
        z, f, delta = (v[member].numpy(force=True) for v in (data.latents, seen.f[0], seen.delta[1]))
        classes = np.eye(3)[data.labels[member].numpy()]
        weight = network.second[member].numpy(force=True)
        signs = positive = rule = 0
        for k in range(5):
            beta = np.argmax([corr(q, f[:20, k]) for q in z[:20].T])
            for j in range(5):
                alpha = np.argmax([corr(q, delta[:20, j]) for q in classes[:20].T])
                a, b = corr(classes[20:, alpha], delta[20:, j]), corr(z[20:, beta], f[20:, k])
                premise = min(a, b, abs(corr(classes[20:, alpha], z[20:, beta]))) > net.PREMISE
                signs += premise
                positive += premise and weight[k, j] * corr(z[20:, beta], delta[20:, j]) > 0
                rule += weight[k, j] * corr(f[20:, k], delta[20:, j]) > 0
        assert (found["signs"][member], found["signs positive"][member]) == (signs, positive)
        assert found["edges with the rule"][member] == rule


def test_angles_are_those_of_the_theory():
    """With one edge the sum of angles is that of joma.theory.cdag on centred signals, and its bound is kept."""
    source = torch.Generator().manual_seed(3)
    za = torch.randn(1, 50, 1, generator=source, dtype=torch.float64)
    zb, f, delta = (za + s * torch.randn(1, 50, 1, generator=source, dtype=torch.float64) for s in (0.2, 0.3, 0.2))
    own = torch.zeros(1, 1, dtype=torch.long)
    a, b, c = (net._correlations(*pair)[:, 0] for pair in ((za, delta), (zb, f), (za, zb)))
    edge = net._edges(
        torch.ones(1, 1, 1, dtype=torch.float64), a, b, c[:, None].abs(), own, own, own,
        net._correlations(zb, delta), net._correlations(f, delta),
    )  # fmt: skip
    theory = cdag.angle_condition(*((v - v.mean(1, keepdim=True))[0, :, 0] for v in (za, zb, f, delta)))
    torch.testing.assert_close(edge["total"][0], theory.total.rad2deg())
    assert bool(edge["angles"][0]) == bool(theory.satisfied)
    assert edge["angles violated"].item() == 0


def test_latents_are_named_by_their_height():
    assert cdag_training._widths(STUDY.quick) == [10, 5]
