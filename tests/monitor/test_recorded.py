"""Looks at stable ranks that are recorded as CUDA graphs: the numbers of plain ones, with the weights of now."""

import gc
import os

import pytest
import torch
from networks import PROBE, made

from joma.monitor import Monitor, ranks, recorded
from joma.monitor.graphs import Memory
from joma.monitor.ranks import Ranks

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def exact(w):
    squares = torch.linalg.svdvals(w.double()).square()
    return float(squares.sum() / squares[0])


def weights(*shapes, device="cuda"):
    random = torch.Generator().manual_seed(0)
    return {f"w{at}": torch.randn(shape, generator=random).to(device) for at, shape in enumerate(shapes)}


def drift(matrices, seed, by=0.003):
    random = torch.Generator().manual_seed(seed)
    for each in matrices.values():
        each += by * torch.randn(each.shape, generator=random).to(each)


def close(found, matrices, rel=1e-3):
    assert list(found) == list(matrices)
    for name, each in matrices.items():
        assert float(found[name]) == pytest.approx(exact(each), rel=rel), name


def test_on_a_cpu_nothing_is_recorded():
    known, matrices = Ranks(Memory()), weights((300, 400), (300, 300), device="cpu")
    for step in range(4):
        close(known.of(matrices), matrices)
        drift(matrices, step)
    assert known.recorded == {}


def test_gram_matrices_of_one_look_have_a_limit(monkeypatch):
    matrices = weights(*[(40, 50)] * 5, (30, 40), device="cpu")
    assert [len(each) for each in ranks._of_one_side(matrices)] == [5, 1]
    assert [len(each) for each in ranks._of_one_side(matrices, 2 * 40 * 40)] == [2, 2, 1, 1]
    assert [len(each) for each in ranks._of_one_side(matrices, 1)] == [1] * 6


def test_leaving_the_block_gives_the_memory_of_recordings_back():
    with Monitor(made(), probe=PROBE, every=1) as monitor:
        ranks_of_it = monitor._matrices._ranks
        ranks_of_it.recorded, ranks_of_it._memory = {("w",): None}, Memory()
    assert ranks_of_it.recorded == {}
    assert ranks_of_it._memory is None


@gpu
def test_the_second_look_is_recorded_and_those_after_it_follow_the_weights(monkeypatch):
    known, matrices = Ranks(Memory()), weights((300, 400), (400, 300), (300, 400), (64, 80))
    asked, own = [], ranks.follow
    monkeypatch.setattr(ranks, "follow", lambda *a, **k: asked.append(len(a[0])) or own(*a, **k))
    for step in range(8):
        close(known.of(matrices), matrices)
        drift(matrices, step, 0.01)
        if step == 1:
            plain = len(asked)
    assert len(asked) == plain  # after the first plain look none
    assert sorted(map(len, known.recorded)) == [1, 3]
    assert all(each is not None for each in known.recorded.values())


@gpu
def test_recorded_and_plain_looks_have_the_same_numbers():
    alike = [weights((300, 400), (300, 300), (128, 512)) for _ in range(2)]
    known = Ranks(Memory()), Ranks()
    for step in range(6):
        one, other = (each.of(matrices) for each, matrices in zip(known, alike, strict=True))
        for name in one:
            assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-5)
        for matrices in alike:
            drift(matrices, step)


@gpu
def test_matrices_that_have_moved_are_recorded_anew():
    known, matrices = Ranks(Memory()), weights((300, 400), (300, 300))
    for _ in range(3):
        known.of(matrices)
    before = known.recorded[tuple(matrices)]
    old = dict(matrices)  # keeps the old places taken
    matrices |= {name: 2 * each + 0.01 * torch.randn_like(each) for name, each in matrices.items()}
    for each in old.values():
        each.zero_()
    close(known.of(matrices), matrices)
    assert known.recorded[tuple(matrices)] is not before


@gpu
def test_one_in_doubt_is_certified_alone_and_then_comes_back():
    known, matrices = Ranks(Memory()), weights((300, 400), (300, 400), (300, 300))
    for _ in range(4):
        known.of(matrices)
    certified = known.certified
    matrices["w1"].copy_(torch.randn(300, 400, generator=torch.Generator().manual_seed(9)))
    for _ in range(2):
        found = known.of(matrices)
        torch.cuda.synchronize()
    close(found, matrices)
    assert known.certified == certified + 1
    for step in range(4):
        drift(matrices, step)
        close(known.of(matrices), matrices)
        torch.cuda.synchronize()
    assert known.certified == certified + 1
    assert [key for key, look in known.recorded.items() if look is not None] == [("w0", "w1", "w2")]


@gpu
def test_what_cannot_be_recorded_goes_on_and_says_so_once(monkeypatch, capsys, recwarn):
    def refuse(*_):
        raise RuntimeError("no memory for a graph")

    monkeypatch.setattr(ranks, "RecordedLook", refuse)
    known, matrices = Ranks(Memory()), weights((300, 400), (300, 300))
    for step in range(5):
        close(known.of(matrices), matrices)
        drift(matrices, step)
    assert known.recorded == {}


@gpu
def test_a_recording_that_fails_half_way_leaves_random_numbers_and_graphs_usable(monkeypatch):
    matrices = weights((300, 400))
    block = torch.randn(1, 300, 16, device="cuda")
    own, calls = recorded.follow, []

    def waits(*given, **options):
        calls.append(1)
        found = own(*given, **options)
        if len(calls) > 1:
            float(found.stable_rank[0])  # not allowed in a recording
        return found

    torch.manual_seed(3)
    wanted = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    monkeypatch.setattr(recorded, "follow", waits)
    with pytest.raises(Exception):  # noqa: B017
        recorded.RecordedLook(list(matrices.values()), block, Memory())
    assert torch.equal(torch.rand(4, device="cuda"), wanted)
    monkeypatch.setattr(recorded, "follow", own)
    look = recorded.RecordedLook(list(matrices.values()), block, Memory())
    for _ in range(6):
        found = look.again(block, torch.Generator("cuda").manual_seed(0))
        block = found.vectors
    assert float(found.stable_rank) == pytest.approx(exact(matrices["w0"]), rel=1e-3)


@gpu
def test_memory_is_given_back():
    known, matrices = Ranks(Memory()), weights((300, 400), (300, 300))
    for _ in range(3):
        known.of(matrices)
    assert any(known.recorded.values())
    known.record_no_more()
    assert known.recorded == {}
    for step in range(3):
        drift(matrices, step)
        close(known.of(matrices), matrices)
    assert known.recorded == {}


@gpu
def test_recordings_of_one_memory_do_not_spoil_each_other():
    some = weights((300, 400), (300, 300), (200, 400), (200, 300))
    known = Ranks(Memory())
    for step in range(10):
        names = list(some) if step % 3 else list(some)[:2]  # the graphs take turns in another order
        part = {name: some[name] for name in names}
        close(known.of(part), part)
        drift(some, step)
    gc.collect()


@gpu
@pytest.mark.skipif(
    os.environ.get("JOMA_TEST_DEVICE") != "cuda", reason="needs compiled kernels: JOMA_TEST_DEVICE=cuda"
)
@pytest.mark.parametrize("moved", [(), ("bias",), ("weight",), ("bias", "weight")])
def test_a_pass_and_looks_share_memory_and_each_shows_its_own_numbers(moved):
    """Also where the pass is recorded anew and the looks are not, or both, or the looks alone would be."""
    transformers = pytest.importorskip("transformers")
    shape = {"n_positions": 64, "n_embd": 128, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=50, bos_token_id=0, eos_token_id=0, attn_pdrop=0.0, **shape)
    probe = torch.randint(50, (4, 64), generator=torch.Generator().manual_seed(0)).cuda()
    found = []
    for replay in (False, True):
        torch.manual_seed(0)
        model, seen = transformers.GPT2LMHeadModel(config).cuda(), []
        options = {"probe": {"input_ids": probe}, "every": 1, "heads": True, "replay": replay}
        with Monitor(model, sinks=lambda step, values, seen=seen: seen.append(values), **options) as monitor:
            for step in range(10):
                with torch.no_grad():
                    for name, each in model.named_parameters():
                        each += 0.01 * torch.randn(each.shape, generator=torch.Generator().manual_seed(step)).to(each)
                        if step in (4, 7) and name.endswith(moved) and "ln" not in name and "wte" not in name:
                            each.data = each.data.clone()
                monitor.step()
        found.append(seen)
    assert len(found[0]) == len(found[1]) == 11
    for plain, replayed in zip(*found, strict=True):
        assert plain.keys() == replayed.keys()
        for name, value in plain.items():
            assert replayed[name] == pytest.approx(value, rel=2e-3, abs=1e-4), name
