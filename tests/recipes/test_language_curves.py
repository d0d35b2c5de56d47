"""What is read back of a record: means over the seeds that are left, and drops and rebounds seed by seed."""

import numpy as np
import pytest
from small_language_models import FREQUENCIES, SMALL, by_hand, down_and_up

from joma.claims.contract import NotRun
from joma.recipes.language import curves as recorded
from joma.recipes.language.curves import diverged, learned_nothing
from joma.studies.language import fig6


@pytest.fixture
def record(tmp_path):
    """Of one variant with one rate and so many seeds that drop by 1 and come back by 0.5."""

    def make(losses, lost=(), back=0.5):
        entropy = down_and_up(np.ones((len(losses), 2)), np.broadcast_to(back, (len(losses), 2)))
        config = fig6.Fig6Config(**SMALL, seeds=len(losses))
        path = tmp_path / f"run{len(list(tmp_path.iterdir()))}.sqlite"
        return by_hand(path, fig6.STUDY, config, {"L2": ((0.02,), losses, entropy, lost, {})})

    return make


def test_means_are_of_the_seeds_that_are_left():
    assert recorded.mean_over_seeds([1.0, np.nan, 3.0]) == recorded.mean_over_seeds([[2.0], [np.nan]]) == 2.0
    assert np.isnan(recorded.mean_over_seeds([np.nan]))


def test_drops_and_rebounds_keep_the_place_of_every_seed(record):
    run = record([2.0, 2.0, 2.0, 2.0], lost=[1], back=np.array([[0.1], [9.0], [0.3], [0.4]]))
    drop, back = recorded.drops_and_rebounds(run, "L2")
    assert drop.shape == back.shape == (2, 4)
    np.testing.assert_allclose(drop[:, [0, 2, 3]], 1.0)
    np.testing.assert_allclose(back[:, [0, 2, 3]], [[0.1, 0.3, 0.4]] * 2)
    assert np.isnan(drop[:, 1]).all()
    assert np.isnan(back[:, 1]).all()


def test_two_seeds_have_no_valley_of_the_others(record):
    drop, back = recorded.drops_and_rebounds(record([2.0, 2.0, 2.0], lost=[1]), "L2")
    assert np.isnan(drop).all()
    assert np.isnan(back).all()


def test_a_network_has_learned_what_is_clearly_below_the_frequencies(record):
    run = record([FREQUENCIES - 0.04, FREQUENCIES - 0.05, FREQUENCIES - 0.04])
    assert recorded.learned_at(run, "L2").tolist() == [False]
    assert "best loss is 3.957 nats, predicting by frequency alone has 4.000 nats" in learned_nothing(run, "L2")
    assert diverged(run, ["L2"]) == {}


def test_a_network_that_diverged_counts_for_nothing(record):
    run = record([FREQUENCIES - 1, FREQUENCIES - 1, FREQUENCIES - 1, 99.0], lost=[3])
    assert recorded.learned_at(run, "L2").tolist() == [True]
    assert learned_nothing(run, "L2") == ""
    assert diverged(run, ["L2"]) == {"diverged and left out": {"runs of L2": 1.0}}


def test_nothing_is_judged_by_two_seeds_or_by_networks_that_learned_nothing(record):
    recorded.must_tell(record([2.0, 2.0, 2.0, 2.0], lost=[1]), ["L2"])
    run = record([2.0, 2.0, 2.0], lost=[1])
    with pytest.raises(NotRun, match="too many runs of L2 diverged: 2 are left") as few:
        recorded.must_tell(run, ["L2"])
    assert few.value.changes == {"rate": run.config["rate"] / 3}
    with pytest.raises(NotRun, match="learned no more than how frequent words are"):
        recorded.must_tell(record([FREQUENCIES] * 3), ["L2"])
