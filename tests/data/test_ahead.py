"""Batches drawn ahead are those drawn one by one, whatever is asked for when, and what is kept is bounded."""

import random

import pytest
import torch
from later import some_now

from joma.data.ahead import LONGEST, MOST_BYTES, Ahead, turns
from joma.data.hierarchy import HBLT
from joma.data.samples import streams

TREE = HBLT.one_per_class(3, 2, torch.tensor([[0.9], [0.5], [0.7], [1.0]])).permuted(streams(0, range(4)))


class Drawn:
    """Samples of four trees; notes what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, steps, members):
        self.asked.append(steps)
        source = [one for step in steps for one in streams(5, members, step)]
        sample = TREE.select([*members] * len(steps)).sample((len(source), 6), generator=source)
        return tuple(part.unflatten(0, (len(steps), len(members))) for part in (sample.tokens, sample.labels))


def alone(step, members):
    sample = TREE.select(members).sample((len(members), 6), generator=streams(5, members, step))
    return sample.tokens, sample.labels


def assert_same(batch, wanted):
    for part, other in zip(batch, wanted, strict=True):
        assert torch.equal(part, other)


def test_a_training_run_reads_what_it_would_read_step_by_step():
    draw = Drawn()
    batch = Ahead(draw, steps=50)
    for step in range(50):
        assert_same(batch(step, range(4)), alone(step, range(4)))
    assert draw.asked == [range(1), range(1, 50)]


def test_the_order_of_access_makes_no_difference():
    chance = random.Random(0)
    batch = Ahead(Drawn(), steps=40, most_bytes=6000)
    step, members = 0, (0, 1)
    for _ in range(200):
        step = chance.choice([step + 1, step + 1, step + 1, step, chance.randrange(60)])  # beyond the end as well
        members = chance.choice([members, members, members, (1, 0), (3,), (0, 1, 2, 3)])
        assert_same(batch(step, members), alone(step, members))


def test_a_list_and_a_range_of_the_same_members_share_a_block():
    draw = Drawn()
    batch = Ahead(draw, steps=50)
    for step in range(20):
        batch(step, range(4) if step % 2 else [0, 1, 2, 3])
    assert len(draw.asked) == 2


def test_single_questions_draw_single_steps():
    draw = Drawn()
    batch = Ahead(draw, steps=1000)
    for step, members in ((0, [0]), (0, [0]), (7, [0]), (3, [1])):
        batch(step, members)
    assert draw.asked == [range(1), range(7, 8), range(3, 4)]


@pytest.mark.parametrize("most", some_now([0, 1, 1000, 5000, 10**9], every=2))
def test_what_is_kept_is_bounded(most):
    draw = Drawn()
    batch = Ahead(draw, steps=2000, most_bytes=most)
    one = sum(part.nbytes for part in batch(0, range(4)))
    for step in range(1, 600):
        batch(step, range(4))
    longest = max(len(steps) for steps in draw.asked)
    assert longest == max(1, min(LONGEST, most // one))
    assert longest * one <= max(most, one)


def test_none_is_drawn_beyond_the_end_before_it_is_asked_for():
    draw = Drawn()
    batch = Ahead(draw, steps=5)
    for step in range(8):
        assert_same(batch(step, [2]), alone(step, [2]))
    assert draw.asked == [range(1), range(1, 5), range(5, 6), range(6, 7), range(7, 8)]


def test_a_draw_that_breaks_leaves_nothing_half_drawn():
    broken = [False]

    def draw(steps, members):
        if broken[0]:
            raise MemoryError
        return Drawn()(steps, members)

    batch = Ahead(draw, steps=100, most_bytes=1)
    batch(0, [1])
    broken[0] = True
    with pytest.raises(MemoryError):
        batch(1, [1])
    with pytest.raises(MemoryError):  # the old block was let go, and is not taken for the new one
        batch(0, [1])
    broken[0] = False
    assert_same(batch(1, [1]), alone(1, [1]))


def test_what_draw_gives_must_have_steps_and_members_in_front():
    batch = Ahead(lambda steps, members: (torch.zeros(len(members), len(steps)),), steps=9)
    with pytest.raises(ValueError, match=r"draw must give tensors of shape \(1, 3, \.\.\.\), .* got \(3, 1\)"):
        batch(0, [0, 1, 2])


def test_both_kinds_of_device_have_a_bound():
    assert Ahead(Drawn(), steps=1).most_bytes == MOST_BYTES["cpu"]
    assert Ahead(Drawn(), steps=1, device="cuda").most_bytes == MOST_BYTES["cuda"]


def test_turns_go_round():
    whole = turns(range(10), 3, 8, "cpu")
    assert whole.flatten().tolist() == [i % 8 for i in range(30)]
    assert torch.equal(turns(range(4, 6), 3, 8, "cpu"), whole[4:6])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_gpu_is_never_waited_for():
    def draw(steps, members):
        return tuple(part.cpu() for part in Drawn()(steps, members))

    batch = Ahead(draw, steps=50, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        read = [batch(step, range(4)) for step in range(50)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step, parts in enumerate(read):
        assert_same([part.cpu() for part in parts], alone(step, range(4)))
