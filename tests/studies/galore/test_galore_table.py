"""`galore-table`: the methods, the protocol (rates first, then seeds), what can be resumed, and verdicts that turn."""

import dataclasses
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kept_records import RECORDS, needs_records
from records import changed, found, verdicts
from small_runs import small

from joma.claims.contract import NotRun, silent
from joma.claims.execute import plain_config
from joma.data.errors import CorpusError
from joma.host.errors import BadInput
from joma.runs import Run
from joma.studies.galore.galore_table import networks as names
from joma.studies.galore.galore_table.networks import METHODS
from joma.studies.galore.galore_table.run import (
    LONG,
    SWEEP,
    Reading,
    Table,
    Text,
    Trainer,
    Trial,
    place,
    read_text,
    remember,
    trials,
)
from joma.studies.galore.galore_table.study import STUDY, states_by_formula

TINY = small("galore-table")


@pytest.fixture
def reading():
    return Reading(TINY, read_text(TINY, silent))


def test_the_loss_of_who_knows_frequencies_alone():
    """Tokens 0, 1, 1, 1 of three, each seen once more: shares of 2/7, 4/7 and 1/7. The first of a row is not asked."""
    text, config = SimpleNamespace(train=torch.tensor([0, 1, 1, 1])), SimpleNamespace(vocabulary=3)
    held_out = {"one": torch.tensor([[2, 1, 0], [2, 2, 1]]), "other": torch.tensor([[0, 0]])}
    of = Reading.by_frequency.func(SimpleNamespace(text=text, config=config, held_out=held_out))
    wanted = {"one": -np.log([4 / 7, 2 / 7, 1 / 7, 4 / 7]).mean(), "other": -np.log(2 / 7)}
    assert of == pytest.approx(wanted, rel=1e-12)


def test_every_method_is_tried_at_every_rate_and_compared_with_every_seed(run):
    table = Table(run)
    for method in METHODS:
        assert np.isfinite(table.ends(SWEEP, method)).all()
        assert len(table.long_trials(method)) == (4 if method in (names.GALORE, names.SCALED) else 3)
        assert run.value(f"{table.long_trials(method)[0]}/losses").shape == (6,)
        assert run.value(f"{table.long_trials(method)[0]}/held out").shape == (2, 1)
    assert table.best_of(SWEEP, names.GALORE) == table.rates[int(table.ends(SWEEP, names.GALORE).argmin())]


def test_full_rank_may_choose_the_lower_neighbour_at_the_long_horizon(run):
    longs = {name.split("/")[2] for name in run.names() if name.startswith(f"{LONG}/{names.FULL}/")}
    best = Table(run).best_of(SWEEP, names.FULL)
    assert longs == ({"0.03", "0.01"} if best == 0.03 else {"0.01"})

    def worse_above(name, step, value):
        return value + 1 if name.endswith("/held out") and "/0.03/" in name else value

    assert Table(changed(run, worse_above)).rate(names.FULL) in (0.01, None)


def test_verdicts_come_from_the_record(run):
    of = verdicts(STUDY, run)
    assert set(of) == {claim.name for claim in STUDY.claims}
    assert of["memory-of-states"] == "holds"
    assert (of["little-overhead"], of["printed-perplexities"]) == ("at paper scale", "at paper scale")


QUICK = dataclasses.replace(STUDY.quick, seeds=3, seed=0)


def made(path, ends, *, spread=0.001, config=QUICK, seconds=None, states=None, rates=(0.02, 0.005)):
    """A record in which methods end with such losses; the seeds differ by `spread`, each method in its own way."""
    record = Run.create(path, study="galore-table", config=plain_config(config), version=1)
    record.keep("text/by frequency", lambda: np.array([5.0]), dims={"source": ["Python"]})
    noise = np.random.default_rng(0)
    for method in config.methods:
        for seed in range(config.close_seeds if method in config.close and config.close_seeds > 1 else config.seeds):
            loss = ends[method] + spread * noise.standard_normal()
            for horizon, rate in ((SWEEP, rates[0]), (SWEEP, rates[1]), (LONG, rates[0])):
                if horizon == LONG or seed == 0:
                    low_rank = method in (names.GALORE, names.RANDOM)
                    kept = states_by_formula(record.config, names.GALORE if low_rank else names.FULL)
                    at = place(horizon, method, rate, seed)
                    record.record(
                        0,
                        {
                            f"{at}/held out": np.array([[loss + (rate != rates[0])]]),
                            f"{at}/losses": np.linspace(6, loss, config.steps),
                            f"{at}/seconds per step": (seconds or {}).get(method, 1.0) + 1e-4 * noise.standard_normal(),
                            f"{at}/bytes": np.array([100, 100, (states or {}).get(method, kept), 0]),
                        },
                    )
    return record


AS_PRINTED = {
    names.FULL: 3.50,
    names.SCALED: 3.51,
    names.GALORE: 3.52,
    names.RANDOM: 3.60,
    names.LORA: 3.60,
    names.RELORA: 3.65,
    names.LOW: 4.30,
}


def test_close_methods_are_compared_over_all_of_their_seeds_and_all_four_corners_are_told(tmp_path):
    some = (names.FULL, names.SCALED, names.GALORE, names.UNSCALED, names.LOW)
    config = dataclasses.replace(QUICK, methods=some, close_seeds=5)
    ends = AS_PRINTED | {names.UNSCALED: 3.8}
    record = made(tmp_path / "run", ends, config=config, spread=0.001)
    table = Table(record)
    assert [table.more(names.GALORE, other).seeds for other in (names.SCALED, names.FULL)] == [5, 3]
    told = found(STUDY, record, "close-to-full-rank").details
    for pair, gap in (("unscaled GaLore minus full rank", 0.3), ("GaLore minus unscaled GaLore", -0.28)):
        assert told[pair]["nats"] == pytest.approx(gap, abs=0.005)
    assert told["GaLore minus scaled full rank"]["half of its interval"] < 0.005


def of(record, claim):
    return found(STUDY, record, claim).verdict


def test_the_printed_order_holds(tmp_path):
    record = made(tmp_path / "run", AS_PRINTED, spread=0.0003)
    found_verdicts = verdicts(STUDY, record)
    kept = ("close-to-full-rank", "full-rank-is-best", "better-than-adapters", "factors-are-worst")
    assert [found_verdicts[name] for name in (*kept, "subspace-of-the-gradient", "memory-of-states")] == ["holds"] * 6


@pytest.mark.parametrize(
    ("changes", "claim", "verdict"),
    [
        ({names.GALORE: 3.60}, "close-to-full-rank", "only qualitative"),  # 0.1 nats behind full rank
        ({names.GALORE: 4.40}, "close-to-full-rank", "fails"),
        ({names.GALORE: 3.51}, "full-rank-is-best", "only qualitative"),  # behind by less than matters
        ({names.FULL: 4.40}, "full-rank-is-best", "only qualitative"),  # GaLore behind the scaled kind by too little
        ({names.FULL: 4.40, names.SCALED: 3.45}, "full-rank-is-best", "holds as corrected"),
        ({names.FULL: 4.40, names.SCALED: 4.40}, "full-rank-is-best", "fails"),
        ({names.RELORA: 3.40}, "better-than-adapters", "mixed"),  # LoRA is worse, ReLoRA is not
        ({names.LORA: 3.40, names.RELORA: 3.40}, "better-than-adapters", "fails"),
        ({names.LOW: 3.0}, "factors-are-worst", "fails"),
        ({names.LORA: 4.50}, "factors-are-worst", "mixed"),
        ({names.RANDOM: 3.52}, "subspace-of-the-gradient", "not above its control"),
        ({names.RANDOM: 3.40}, "subspace-of-the-gradient", "fails"),
    ],
)
def test_a_changed_order_turns_the_verdict(tmp_path, changes, claim, verdict):
    assert of(made(tmp_path / "run", AS_PRINTED | changes), claim) == verdict


def test_seeds_that_differ_decide_nothing(tmp_path):
    record = made(tmp_path / "run", AS_PRINTED, spread=0.3)
    assert of(record, "better-than-adapters") == of(record, "subspace-of-the-gradient") == "undecided"


def test_a_gap_that_seeds_do_not_place_is_undecided(tmp_path):
    record = made(tmp_path / "run", AS_PRINTED | {names.GALORE: 3.525}, spread=0.06)
    assert of(record, "close-to-full-rank") == "undecided"


def test_who_learned_nothing_does_not_count(tmp_path):
    for loss in (5.1, np.nan):
        record = made(tmp_path / f"{loss}", AS_PRINTED | {names.LORA: loss})
        finding = found(STUDY, record, "better-than-adapters")
        assert finding.verdict == "not run"
        assert "how frequent tokens are" in finding.reason
        assert of(record, "subspace-of-the-gradient") == "holds"
        assert len(STUDY.draw(record)) == 3


def test_memory_must_be_that_of_the_formula(tmp_path):
    assert of(made(tmp_path / "run", AS_PRINTED, states={names.GALORE: 10.0}), "memory-of-states") == "fails"


@pytest.mark.parametrize(("seconds", "verdict"), [(1.05, "holds"), (1.095, "only qualitative"), (1.25, "fails")])
def test_time_is_judged_on_a_gpu_alone(tmp_path, seconds, verdict):
    config = dataclasses.replace(QUICK, device="cuda")
    record = made(tmp_path / "run", AS_PRINTED, config=config, seconds={names.GALORE: seconds})
    assert of(record, "little-overhead") == verdict
    assert of(record, "printed-perplexities") == "not run"  # there it is the text that differs


def test_the_formula_counts_what_is_kept(run):
    table = Table(run)
    for method in (names.FULL, names.GALORE):
        formula = states_by_formula(run.config, method)
        assert 0 <= table.bytes(method)["states"] / formula - 1 < 0.03
    assert table.bytes(names.GALORE)["states"] < table.bytes(names.FULL)["states"]


def test_a_trial_restarts_with_fresh_factors_and_a_fresh_optimizer(reading, monkeypatch):
    """6 steps and 3 restarts: before steps 2 and 4. Adam has then counted 2 steps at the end, not 6."""
    drawn, made, config = [], [], dataclasses.replace(TINY, restarts=3, sweep_steps=3)
    merge, optimizers = names.merge_and_restart, names.optimizers_of

    def merging(network, source):
        merge(network, source)
        drawn.append(network.blocks[0].query.down.detach().clone())

    def making(*given):
        made.extend(optimizers(*given))
        return made[-1:]

    monkeypatch.setattr(names, "merge_and_restart", merging)
    monkeypatch.setattr(names, "optimizers_of", making)
    for seed in (0, 1):
        Trainer(config, reading).carry_out(Trial(names.RELORA, 0.01, seed, config.steps))
    assert len(drawn) == 4
    assert len({tuple(factor.flatten().tolist()) for factor in drawn}) == 4  # each restart of each seed draws anew
    for optimizer in made:
        assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


def test_every_window_is_read_once_per_epoch(reading):
    per_epoch = reading.windows // TINY.batch
    first = torch.cat([reading.batch(1, step) for step in range(per_epoch)])
    assert len(torch.unique(first[:, :-1], dim=0)) > 0.95 * len(first)  # some windows of code are alike
    assert not torch.equal(reading.batch(1, 0), reading.batch(1, per_epoch))
    assert not torch.equal(reading.batch(1, 0), reading.batch(2, 0))
    assert torch.equal(reading.batch(1, 0), reading.batch(1, 0))


def test_a_network_that_diverges_is_recorded_as_lost(reading, monkeypatch):
    monkeypatch.setattr(Trainer, "held_out", lambda self, network, tokens: float("nan"))
    kept = Trainer(TINY, reading).carry_out(Trial(names.FULL, 0.01, 0, TINY.steps))
    assert np.isnan(kept["held out"]).all()
    assert kept["held out"].shape == (2, 1)
    assert np.isnan(kept["losses"][3:]).all()
    assert np.isfinite(kept["losses"][:3]).all()


def test_another_text_is_refused(run, reading):
    other = Reading(TINY, reading.text._replace(sha256="00" * 32))
    with pytest.raises(CorpusError, match="another text"):
        remember(other, run)
    STUDY.check(TINY, run)
    with pytest.raises(CorpusError, match="another text"):
        STUDY.check(dataclasses.replace(TINY, source=20_000), run)


def test_texts_that_are_too_short(reading):
    with pytest.raises(CorpusError, match="a batch of 4 sequences needs a longer text"):
        Reading(TINY, Text(reading.text.train[:40], reading.text.held_out, (0, 0), ""))
    with pytest.raises(CorpusError, match="16 held-out sequences of 16 tokens are wanted, there are 1"):
        Reading(TINY, Text(reading.text.train, {"Python": reading.text.train[:20]}, (0, 0), ""))


def test_wikitext_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("JOMA_DATA", raising=False)
    config = dataclasses.replace(TINY, text=names.INSTALLED)
    with pytest.raises(NotRun, match="neither --data nor JOMA_DATA"):
        read_text(config, silent)
    with pytest.raises(CorpusError, match="data must be the folder that holds wikitext-2"):
        read_text(dataclasses.replace(config, data=str(tmp_path)), silent)


@needs_records
def test_rows_are_trained_again_beside_those_of_the_record(tmp_path):
    again = runpy.run_path(str(RECORDS / "rows_again.py"))["begin"]
    with Run.open(RECORDS / "galore-table" / "galore-table.sqlite") as record:
        with again(record, [names.RANDOM], tmp_path / "runs") as begun:
            left = [(horizon, trial) for horizon, trial in trials(STUDY.paper, begun)
                    if f"{place(horizon, trial.method, trial.rate, trial.seed)}/held out" not in begun]  # fmt: skip
            assert {trial.method for _, trial in left} == {names.RANDOM}
            assert len(left) == len(STUDY.paper.rates)  # the long ones follow from these
            assert (begun.config, begun.version) == (plain_config(STUDY.paper), STUDY.version)
            for name in ("text/sha256", "long/Muon/0.01/seed 0/losses"):
                np.testing.assert_array_equal(begun.value(name), record.value(name))
            assert begun.array("seconds so far")[0] == record.value("seconds")
        with pytest.raises(BadInput, match=r"methods must be rows of .* got 'SGD'"):
            again(record, ["SGD"], tmp_path / "other")
        record.config["refresh"] = 100
        with pytest.raises(BadInput, match="was made with another refresh than galore-table has now"):
            again(record, [names.RANDOM], tmp_path / "other")
