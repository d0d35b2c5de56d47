"""Which share of a piece of work falls to which shard, and what is no shard."""

import pytest

from joma.host.errors import BadInput
from joma.scale.shards import MOST, Shard, read_shard


@pytest.mark.parametrize(
    "text",
    ["0/4", "5/4", "a/b", "1/0", "0/0", "", "/", "1", "1/", "/4", "-1/4", "+1/4", "1/4/2", " 1/4", "1 /4", "1.0/4",
     "1/4\n", "1/" + "9" * 5000, "9" * 19 + "/" + "9" * 19, f"1/{MOST + 1}", "\u0661/4", "1e1/20"],
)  # fmt: skip
def test_what_is_no_shard_is_refused_in_one_short_sentence(text):
    with pytest.raises(BadInput) as error:
        read_shard(text)
    assert error.value.argument == "shard"
    assert len(str(error.value)) < 160


def test_the_largest_and_the_only_shard_are_read():
    assert read_shard("1/1") == Shard(1, 1)
    assert read_shard(f"{MOST}/{MOST}") == Shard(MOST, MOST)
    assert str(read_shard("02/4")) == "2/4"


@pytest.mark.parametrize("of", [1, 2, 3, 4, 7, 12, 40])
def test_every_piece_falls_to_one_shard_and_shares_differ_by_one(of):
    work = [f"step{n}" for n in range(11)]
    shares = [Shard(number, of).dealt(work) for number in range(1, of + 1)]
    assert sorted(one for share in shares for one in share) == sorted(work)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert shares[0][0] == "step0"
    assert all(share == sorted(share, key=work.index) for share in shares)


def test_work_that_comes_at_the_end_moves_nothing_before_it():
    short, long = [str(n) for n in range(10)], [str(n) for n in range(13)]
    for number in range(1, 5):
        share = Shard(number, 4).dealt(long)
        assert Shard(number, 4).dealt(short) == [one for one in share if one in short]


@pytest.mark.parametrize("of", [1, 2, 3, 5, 30])
def test_known_times_are_balanced(of):
    seconds = {f"s{n}": float(1 + (n * 7) % 19) for n in range(23)}
    shares = [Shard(number, of).balanced(seconds) for number in range(1, of + 1)]
    assert sorted(one for share in shares for one in share) == sorted(seconds)
    loads = [sum(seconds[name] for name in share) for share in shares]
    # The greedy rule: no shard is ahead of another by more than the last piece that it got.
    assert max(loads) - min(loads) <= max(min(seconds[name] for name in share) for share in shares if share)
    assert all(share == sorted(share, key=list(seconds).index) for share in shares)


def test_equal_times_are_dealt_in_turn():
    assert [Shard(number, 2).balanced(dict.fromkeys("abcde", 1.0)) for number in (1, 2)] == [list("ace"), list("bd")]
