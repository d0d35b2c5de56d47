"""Members spread over processes: the record of one process, bit for bit, whatever dies on the way."""

import os
from pathlib import Path

import numpy as np
import pytest
import small_ensembles
import spread_ensembles
from small_ensembles import fresh

from joma.host.errors import BadInput
from joma.runs import Run, RunError
from joma.scale.task import Done, Going, Lost
from joma.training import branch, spread, train_all, train_spread


class InThisProcess:
    """An executor for tests: one task after the other, here. A process that dies is tested with real ones below."""

    died: int | None = None

    def __init__(self, **how):
        self.how = how

    def events(self, function, tasks):
        assert function == "joma.training.spread:train_share"
        assert len(tasks) == self.how["jobs"]
        for task in tasks:
            if task.arguments["number"] == self.died:
                yield Lost(task, "its process died of SIGKILL")
                continue
            yield Going(task, 0.5, "half of it")
            yield Done(task, spread.train_share(dict(task.arguments), lambda share, doing: None), 0)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(spread, "Local", InThisProcess)
    monkeypatch.setattr(InThisProcess, "died", None)


def recorded(run):
    return {
        name: (run.dims(name), [(int(step), run.at(name, int(step)).dtype.name, run.at(name, int(step)).tobytes())
                                for step in run.steps(name)])
        for name in run.names()
    }  # fmt: skip


def trained(path, build, **arguments):
    with fresh(path) as run:
        train_all(getattr(spread_ensembles, build)(device="cpu", **arguments), run)
        return recorded(run)


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
@pytest.mark.parametrize("build", ["small", "several", "numbered"])
def test_any_number_of_shares_gives_the_record_of_one_process(tmp_path, here, shares, build):
    expected = trained(tmp_path / "one.sqlite", build)
    with fresh(tmp_path / "spread.sqlite") as run:
        train_spread(f"spread_ensembles:{build}", {}, run, shares=shares)
        found = recorded(run)
    assert list(found) == list(expected)
    assert found == expected
    if build == "numbered":
        with Run.open(tmp_path / "spread.sqlite") as run:
            assert run.at("whose", 5).tolist() == [0, 1, 2, 3, 4]
            assert run.at("moved", 5)[:, 1].tolist() == [0, 1, 2, 3, 4]
    kept = [path.name for path in tmp_path.iterdir() if path.name.startswith("spread.sqlite-")]
    assert kept == (["spread.sqlite-base.step5.kept"] if build == "several" else [])


@pytest.mark.parametrize("together", [None, 2])
def test_decoders_are_the_same_to_the_bit(tmp_path, here, together):
    expected = trained(tmp_path / "one.sqlite", "decoders", together=together)
    with fresh(tmp_path / "spread.sqlite") as run:
        train_spread("spread_ensembles:decoders", {"together": together}, run, shares=2)
        found = recorded(run)
    assert list(found) == list(expected) == ["deep/weights", "deep/train_loss", "deep/diverged_at"]
    if together == 2:
        assert found == expected
    else:  # so many at once: torch may add up in another order
        with Run.open(tmp_path / "one.sqlite") as one, Run.open(tmp_path / "spread.sqlite") as run:
            np.testing.assert_allclose(run.array("deep/weights"), one.array("deep/weights"), rtol=1e-12, atol=1e-14)


def test_members_are_in_their_places(tmp_path, here):
    """They have different rates and seeds, so two that change places would be seen; here they are named."""
    with fresh(tmp_path / "a.sqlite") as run:
        train_spread("spread_ensembles:small", {}, run, shares=2)
        start = run.at("weights", 0)
    for member in range(5):
        alone = spread.only(spread_ensembles.small("cpu")[""], [member])
        assert alone.members == 1
        assert alone.optimizer.rates(1) == (spread_ensembles.layers().optimizer.rates(5)[member],)
        with fresh(tmp_path / f"{member}.sqlite") as run:
            train_all({"": alone}, run)
            assert (run.at("weights", 0)[0] == start[member]).all()


def test_a_later_branch_begins_from_states_that_shares_kept(tmp_path, here):
    later = branch(spread_ensembles.several("cpu")["base"], of="base", at=5, frozen=("matrix",))
    found = []
    for name in ("one", "spread"):
        with fresh(tmp_path / f"{name}.sqlite") as run:
            if name == "one":
                train_all(spread_ensembles.several("cpu"), run)
            else:
                train_spread("spread_ensembles:several", {}, run, shares=2)
            train_all({"later": later}, run)
            found.append(run.at("later/weights", 12).tobytes())
    assert found[0] == found[1]


def test_what_is_recorded_is_not_trained_again(tmp_path, here, monkeypatch):
    with fresh(tmp_path / "a.sqlite") as run:
        train_spread("spread_ensembles:small", {}, run, shares=2)
        before = recorded(run)
        monkeypatch.setattr(spread, "train_all", None)
        train_spread("spread_ensembles:small", {}, run, shares=2)
        assert recorded(run) == before


def test_putting_together_that_was_cut_off_goes_on(tmp_path, here, monkeypatch):
    expected = trained(tmp_path / "one.sqlite", "small")
    real, count = spread._record, 0

    def killed(*arguments):
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        real(*arguments)

    with fresh(tmp_path / "a.sqlite") as run:
        monkeypatch.setattr(spread, "_record", killed)
        with pytest.raises(KeyboardInterrupt):
            train_spread("spread_ensembles:small", {}, run, shares=2)
        assert run.steps("train_loss").tolist() == [0]
        monkeypatch.setattr(spread, "_record", real)
        steps, batch = [], small_ensembles.batch
        monkeypatch.setattr(small_ensembles, "batch", lambda step, who: steps.append(step) or batch(step, who))
        train_spread("spread_ensembles:small", {}, run, shares=2)
        assert recorded(run) == expected
        assert set(steps) == {0}  # to see how large a batch is; nothing is trained


def test_a_lost_share_leaves_the_others_and_the_same_call_goes_on(tmp_path, here, monkeypatch):
    expected = trained(tmp_path / "one.sqlite", "small")
    told = []
    with fresh(tmp_path / "a.sqlite") as run:
        monkeypatch.setattr(InThisProcess, "died", 1)
        lost = r"share 2 of 2 was not trained \(its process died of SIGKILL\); the same call continues with what is mis"
        with pytest.raises(RunError, match=lost):
            train_spread("spread_ensembles:small", {}, run, shares=2, progress=lambda *one: told.append(one))
        assert told == [(0.25, "share 1 of 2: half of it"), (0.5, "share 1 of 2: done")]
        assert not run.names()
        assert (tmp_path / "a.sqlite-1-of-2.share").exists()
        monkeypatch.setattr(InThisProcess, "died", None)
        train_spread("spread_ensembles:small", {}, run, shares=2)
        assert recorded(run) == expected
        assert not list(tmp_path.glob("*share*"))


def test_a_share_of_another_run_or_other_arguments_is_not_taken(tmp_path, here, monkeypatch):
    for arguments in ({"steps": 20}, {}):
        with fresh(tmp_path / "a.sqlite") as run:
            monkeypatch.setattr(InThisProcess, "died", 1)
            with pytest.raises(RunError):
                train_spread("spread_ensembles:small", arguments, run, shares=2)
            monkeypatch.setattr(InThisProcess, "died", None)
            if not arguments:
                train_spread("spread_ensembles:small", arguments, run, shares=2)
                assert run.steps("train_loss").tolist() == [0, 5, 12]
        if arguments:
            os.unlink(tmp_path / "a.sqlite")  # the shares stay: they are of a run that is gone


def test_a_share_of_an_earlier_run_is_not_taken_although_it_was_asked_for_the_same(tmp_path, here, monkeypatch):
    """The texts have changed between the two runs, which no argument tells."""
    expected, real = trained(tmp_path / "one.sqlite", "small"), small_ensembles.batch
    monkeypatch.setattr(InThisProcess, "died", 1)
    monkeypatch.setattr(small_ensembles, "batch", lambda step, members: real(step + 1, members))
    with fresh(tmp_path / "a.sqlite") as run, pytest.raises(RunError):
        train_spread("spread_ensembles:small", {}, run, shares=2)
    monkeypatch.setattr(InThisProcess, "died", None)
    monkeypatch.setattr(small_ensembles, "batch", real)
    os.unlink(tmp_path / "a.sqlite")
    with fresh(tmp_path / "a.sqlite") as run:
        run.created = "2001-01-01T00:00:00+00:00"  # not in the second in which the first was made
        train_spread("spread_ensembles:small", {}, run, shares=2)
        assert recorded(run) == expected


def test_deleting_a_run_deletes_its_shares(tmp_path, here, monkeypatch):
    monkeypatch.setattr(InThisProcess, "died", 1)
    with fresh(tmp_path / "a.sqlite") as run, pytest.raises(RunError):
        train_spread("spread_ensembles:small", {}, run, shares=2)
    assert (tmp_path / "a.sqlite-1-of-2.share").exists()
    Run.delete(tmp_path / "a.sqlite")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shares": 0}, "shares must be at least 1"),
        ({"device": "cuda:1"}, "every process chooses its own"),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:NUMBER"),
        ({"build": "spread_ensembles:branch_alone"}, "twin branches off base, which is not among the ensembles"),
    ],
)
def test_what_cannot_be_spread_is_refused(tmp_path, here, wrong, said):
    given = {"build": "spread_ensembles:small", "arguments": {}, "shares": 2, **wrong}
    with fresh(tmp_path / "a.sqlite") as run, pytest.raises(ValueError, match=said) as error:
        train_spread(run=run, **given)
    assert isinstance(error.value, BadInput) or "tpu" in str(error.value)


@pytest.fixture
def processes_find_the_ensembles(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.mark.long
def test_two_processes_give_the_record_of_one(tmp_path, processes_find_the_ensembles):
    expected = trained(tmp_path / "one.sqlite", "several")
    with fresh(tmp_path / "spread.sqlite") as run:
        train_spread("spread_ensembles:several", {}, run, shares=2)
        assert recorded(run) == expected


@pytest.mark.long
def test_a_process_that_is_killed_goes_on_from_its_checkpoint(tmp_path, processes_find_the_ensembles):
    expected = trained(tmp_path / "one.sqlite", "small")
    log = tmp_path / "log"
    with fresh(tmp_path / "spread.sqlite") as run:
        train_spread("spread_ensembles:deadly", {"log": str(log), "times": 2}, run, shares=2, checkpoint_every=0.0)
        assert recorded(run) == expected
    steps = log.read_text().split()
    assert steps.count("died") == 2
    assert steps.count("3") == 1  # what a checkpoint holds is not trained again
    assert steps.count("10") == 3  # what came after it is


@pytest.mark.long
def test_an_error_of_the_ensembles_is_named(tmp_path, processes_find_the_ensembles):
    with fresh(tmp_path / "a.sqlite") as run, pytest.raises(RunError, match="there is no such text") as error:
        train_spread("spread_ensembles:broken", {}, run, shares=2)
    assert str(error.value).count("was not trained") == 2
