"""Processes that train together are monitored as one is: DDP, FSDP2, tensor parallelism, and two of them at once."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import several_processes
import torch
from patience import PATIENCE
from several_processes import EVERY, PROBE, STEPS, TEXT, TOKENS, llama, padded
from split_networks import HEADS, network, slow_attention, slow_matrices
from test_gradients import norms_by_layer

from joma.host.errors import BadInput
from joma.monitor import Monitor
from joma.monitor.batch import ProbeBatch
from joma.monitor.distributed import share_of
from joma.monitor.pooled import Layer, Seat, SeenByAll, table_of
from joma.monitor.sharded import _rank_of
from joma.probes._parallel import Team
from joma.runs import Run

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
TRAINED = ("ddp", "fsdp", "tp")
OF_FOUR = ("fsdp and tp", "fsdp of copies")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All cases in one start, because a start takes seconds."""
    folder = tmp_path_factory.mktemp("several")
    command = [sys.executable, several_processes.__file__, str(folder)]
    without_gpu = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # forked processes that meet over gloo
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=without_gpu)
    assert ended.returncode == 0, ended.stderr
    return folder


def loaded(folder, size):
    return [torch.load(folder / f"found{size}-{rank}.pt", weights_only=False) for rank in range(size)]


@pytest.fixture(scope="module")
def two(folder):
    return loaded(folder, 2)


@pytest.fixture(scope="module")
def four(folder):
    return loaded(folder, 4)


def table(found, name):
    names, values = found[name]
    return dict(zip(names, values, strict=True))


def must_be_those_of_one(found, probe=PROBE):
    """The last tables of a training beside slow numbers of its weights at that step."""
    model = network()
    model.load_state_dict(found["states"][-1])
    for layer, measures in slow_attention(model, probe).items():
        for measure, heads in measures.items():
            if measure in found["tables"]:
                torch.testing.assert_close(table(found["tables"], measure)[layer], heads, **CLOSE)
        assert float(measures["entropy"].std()) > 0.01  # heads that differ
    for measure, by_name in slow_matrices(*found["states"][:-3:-1]).items():
        if measure in found["tables"]:
            assert list(table(found["tables"], measure)) == list(by_name)
            np.testing.assert_allclose(found["tables"][measure][1], list(by_name.values()), **CLOSE)


@pytest.mark.parametrize("case", TRAINED)
def test_two_processes_measure_what_one_does(two, case):
    assert set(two[0][case]["tables"]) >= {"entropy", "largest_logit", "spread/shared", "stable_rank", "update_ratio"}
    assert two[0][case]["tables"]["entropy"][1].shape == (2, HEADS)
    must_be_those_of_one(two[0][case])


@pytest.mark.parametrize("case", OF_FOUR)
def test_so_do_four_in_two_dimensions(four, case):
    must_be_those_of_one(four[0][case])


def test_heads_that_all_processes_have_count_once(two):
    model, found = network(), two[0]["whole attention"]
    for layer, measures in slow_attention(model, PROBE).items():
        for measure in ("entropy", "largest_logit"):
            torch.testing.assert_close(table(found, measure)[layer], measures[measure], **CLOSE)
    now = model.state_dict()
    np.testing.assert_allclose(found["norm"][1], list(slow_matrices(now, now)["norm"].values()), **CLOSE)


def test_pairs_that_train_for_themselves_have_monitors_for_themselves(four):
    for first in (0, 2):
        must_be_those_of_one(four[first]["pairs"], (PROBE + first // 2) % TOKENS)
        assert four[first + 1]["pairs"]["tables"] == {}


@pytest.mark.parametrize("case", TRAINED)
def test_weights_are_those_without_a_monitor_bit_for_bit(two, case):
    for found in two:
        with_it, without = found[case], found[f"{case} without"]
        assert with_it["weights"].keys() == without["weights"].keys()
        assert all(torch.equal(each, without["weights"][name]) for name, each in with_it["weights"].items())
        assert torch.equal(with_it["random"], without["random"])
        assert not torch.equal(with_it["weights"]["head.weight"], network().head.weight)  # it was trained


def test_each_process_reads_its_share_and_the_first_one_records(two, folder):
    assert [[found[case]["rows"] for found in two] for case in TRAINED] == [[3, 2], [3, 2], [5, 5]]
    for case in ("ddp", "fsdp"):
        assert two[1][case]["tables"] == {}
        assert not (folder / f"{case}1.joma").exists()
        with Run.open(folder / f"{case}0.joma") as run:
            assert run.steps("entropy").tolist() == list(range(0, STEPS + 1, EVERY))
            assert run.config["model"] == "Network"  # so that it can go on without FSDP
            assert np.array_equal(run.array("entropy")[-1], two[0][case]["tables"]["entropy"][1])


def test_one_packed_collective_per_measuring(two):
    assert [len(found[case]["sent"]) for found in two for case in TRAINED] == [1 + STEPS // EVERY] * 6


def test_the_root_of_fsdp_is_in_parts_after_every_measuring(two):
    assert [found["fsdp"]["split"] for found in two] == [[True] * STEPS] * 2


def test_a_gram_matrix_is_added_up_and_no_matrix_is_put_together(two):
    for (shape, axis), (_, received) in two[0]["grams"].items():
        w = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).double()
        gram = sum(found["grams"][shape, axis][0].double() for found in two)
        torch.testing.assert_close(
            torch.linalg.eigvalsh(gram), torch.linalg.eigvalsh(w @ w.mT if shape[0] <= shape[1] else w.mT @ w), **CLOSE
        )
        assert all(each <= -(-max(shape) // 2) * min(shape) for each in received)  # as many as a part has
        assert len(received) == (axis == int(shape[0] > shape[1]))  # nothing where the longer side is split


def test_heads_and_padding_of_transformers(two):
    """llama's heads in the order of the whole model; padded queries count in no mean, on whichever process they are."""
    model, batch = llama(False).eval(), padded()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(model(**batch, output_attentions=True).attentions).double()
    real = batch["attention_mask"].bool()
    entropy = torch.special.entr(maps).sum(-1).transpose(2, 3)[:, real].mean(1)  # (layers, heads)
    assert float(entropy.std(1).min()) > 0.01
    for case in ("llama tp", "llama fsdp"):
        torch.testing.assert_close(two[0][case]["entropy"][1], entropy, **CLOSE)
    alone = Monitor(llama(False), probe=batch, measures=["largest_logit", "stable_rank"])
    with alone:
        for case, measure in (
            ("llama tp", "largest_logit"),
            ("llama fsdp", "largest_logit"),
            ("llama fsdp", "stable_rank"),
        ):
            np.testing.assert_allclose(two[0][case][measure][1], alone.latest[measure].values, **CLOSE)


def must_be_slow(found, weights, ids, layers):
    model = network()
    model.load_state_dict(weights)
    slow = slow_attention(model, ids)
    for layer in layers:
        for measure, heads in slow[layer].items():
            if measure in found:
                torch.testing.assert_close(table(found, measure)[layer], heads, **CLOSE)


def test_training_passes_of_all_processes_are_measured_together(two):
    """All layers at the first step, then one after the other: a table when each had its turn."""
    found = two[0]["inside"]
    assert set(found["tables"][0]) >= {"entropy", "largest_logit", "spread/shared"}
    must_be_slow(found["tables"][0], found["states"][0], TEXT[0], ["h.0.attn", "h.1.attn"])
    must_be_slow(found["tables"][2], found["states"][1], TEXT[1], ["h.0.attn"])
    must_be_slow(found["tables"][2], found["states"][2], TEXT[2], ["h.1.attn"])
    assert [each == {} for each in two[1]["inside"]["tables"]] == [True] * 3
    found = two[0]["inside one"]
    for step in range(3):  # one layer is followed: it has its turn at every step
        assert found["tables"][step]["entropy"][0] == ["h.1.attn"]
        must_be_slow(found["tables"][step], found["states"][step], TEXT[step], ["h.1.attn"])


def test_rows_of_the_step_of_all_processes_are_measured_together(two):
    found = two[0]["step"]
    for step in range(3):
        measured = {name: each for name, each in found["tables"][step].items() if name == "entropy" or step == 1}
        assert ("spread/shared" in measured) == (step == 1)
        must_be_slow(measured, found["states"][step + 1], TEXT[step, [0, 2]], ["h.0.attn", "h.1.attn"])


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_gradients_of_all_processes(two, case):
    for step, (tables, gradients) in enumerate(two[0][f"{case} gradients"]):
        assert float(tables["loss"][1]) == 1.5 + step  # the mean of both processes
        norms = table(tables, "gradient_norm")
        assert {name: float(each) for name, each in norms.items()} == pytest.approx(norms_by_layer(gradients), rel=1e-5)
        ranks = {}
        for name, each in gradients.items():
            if each.ndim == 2 and name != "embed.weight":
                sigma = torch.linalg.svdvals(each.double())
                ranks[name] = float(sigma.square().sum() / sigma[0] ** 2)
        found = table(tables, "gradient_stable_rank")
        assert {name: float(each) for name, each in found.items()} == pytest.approx(ranks, rel=1e-5)


def test_embeddings_that_all_processes_hold(two):
    rows = torch.nn.functional.normalize(network().embed.weight.detach().double())
    cosines = (rows @ rows.mT).abs()
    mean = float((cosines.sum() - cosines.diagonal().sum()) / (len(rows) * (len(rows) - 1)))
    found = table(two[0]["ddp gradients"][0][0], "embedding_coherence")
    assert {name: float(each) for name, each in found.items()} == pytest.approx({"embed.weight": mean}, rel=1e-5)


def test_a_stop_reaches_all_processes_at_the_same_step(two):
    sentence = "step 4: entropy of h.0.attn, head 1, is 0.5, below its limit 1"
    assert [found["stopped by first"][:2] for found in two] == [(4, sentence)] * 2
    assert two[0]["stopped by first"][2] == two[1]["stopped by first"][2]
    assert [found["stopped by other"] for found in two] == [(6, "", [])] * 2  # alarms look on the first process alone
    assert [found["stopped at once"][0] for found in two] == [0, 0]


def test_all_go_on_where_the_record_of_the_first_ends(two, folder):
    assert [found["resumed"] for found in two] == [[(0, -1), (3, 3)]] * 2
    with Run.open(folder / "resumed0.joma") as run:
        assert run.steps("norm").tolist() == [0, 2, 4, 6]


def test_the_example_of_fsdp2(folder):
    several_processes.is_what_it_printed(folder / "example/run.joma", (folder / "said0").read_text())
    assert (folder / "said1").read_text() == ""
    assert [path.name for path in (folder / "example").iterdir()] == ["run.joma"]


ENDS = "measuring failed and ends here, training continues: "
LINES = {
    "different steps": f"step 20: {ENDS}processes must measure at the same step, and rank 1 is at step 21 when "
    "rank 0 is at 20: call Monitor.step on all of them, as often",
    "broken on 1": f"step 1: {ENDS}rank 1: this pass is broken",
    "broken on 0": f"step 1: {ENDS}rank 0: this pass is broken",
    "sees nothing": f"step 3: {ENDS}rank 1 saw no attention at step 3, and others did",
    "broken on first alone": f"step 2: {ENDS}rank 0: StopIteration",
}


@pytest.mark.parametrize("case", LINES)
def test_what_fails_on_one_process_ends_on_all_and_is_told_once(two, case):
    assert [found["lines"][case] for found in two] == [[LINES[case]], []]


def test_a_process_that_never_comes_is_not_waited_for_for_ever(two):
    (line,) = two[0]["lines"]["waits in vain"]
    assert line.startswith(f"step 1: {ENDS}the processes did not come together, and Monitor.step must be called on all")
    assert two[1]["lines"]["waits in vain"] == []


def same(name):
    return f"BadInput: {name} must be the same on all processes, and that of rank 1 differs from that of rank 0"


INCLUDE = "include and exclude leave out all attention: there are ['h.0.attn', 'h.1.attn']"
TOKENS_FIRST = "processes share the probe batch by its first dimension, and the model takes that for tokens"
ON_BOTH = {
    "few rows": "BadInput: probe must have a row for each of the 2 shares that processes measure, got 1 row",
    "other probe": same("probe"),
    "other measures": same("measures"),
    "other start": same("start"),
    "stop on one": same("on_alarm"),
    "other layers": same("model"),
    "other attention": "MonitorError: rank 1 has other attention layers than rank 0: ['h.0.attn']",
    "coherence in parts": "BadInput: embedding_coherence is not measured of matrices in parts, and embed.weight lies "
    "on several processes",
    "older FSDP": "BadInput: model is wrapped in FullyShardedDataParallel, which cuts matrices anywhere: use torch's "
    "fully_shard",
    "no group": "BadInput: group must be a process group of torch.distributed, got 'all'",
    "token ids": "MonitorError: probe does not fit Network, which has token ids from 0 to 16: it has 0 to 33",
}
BY_RANK = {
    "tokens first": (f"MonitorError: {TOKENS_FIRST}", f"MonitorError: rank 0: {TOKENS_FIRST}"),
    "first pass of one": ("MonitorError: rank 1: probe does not fit", "MonitorError: probe does not fit Network"),
    "no attention left": (f"BadInput: {INCLUDE}", f"MonitorError: rank 0: {INCLUDE}"),
    "record of the first": ("RunError: ", "MonitorError: rank 0: "),
    "not a member": ("", "BadInput: group must have this process among its members"),
}


@pytest.mark.parametrize("case", ON_BOTH)
def test_what_cannot_work_is_refused_on_all_processes(two, case):
    assert [found["refused"][case] for found in two] == [ON_BOTH[case]] * 2


@pytest.mark.parametrize("case", BY_RANK)
def test_what_one_process_refuses_the_other_hears_of(two, case):
    for found, sentence in zip(two, BY_RANK[case], strict=True):
        assert found["refused"][case].startswith(sentence), found["refused"][case]


def test_processes_that_do_not_know_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    wanted = "this process was started as one of several, and torch.distributed is not initialised: call"
    with pytest.raises(BadInput, match=wanted):
        Monitor(network(), probe=PROBE)
    monkeypatch.setenv("WORLD_SIZE", "1")
    Monitor(network(), probe=PROBE)
    with pytest.raises(BadInput, match=r"group was given, and torch.distributed is not initialised"):
        Monitor(network(), probe=PROBE, group="all")


def test_a_measure_may_come_later_than_others_in_training():
    model = network()
    with Monitor(model, probe="step", rows=2, every=1, measures={"entropy": 1, "spread": 2}) as monitor:
        for step in (1, 2, 3):
            monitor.step(TEXT[0])
            assert ("spread/shared" in monitor.latest) == (step > 1)


def test_labels_are_shared_as_their_rows_are():
    batch = ProbeBatch({"ids": PROBE, "labels": PROBE})
    found = [share_of(batch, share, 2) for share in range(2)]
    assert [each.labels["labels"].tolist() for each in found] == [PROBE[:3].tolist(), PROBE[3:].tolist()]


class Seen:
    """Stands for a probe of layers of two heads: so many queries that count, a number for all means, more by layer."""

    def __init__(self, counts, mean, largest):
        self._counts, self._mean, self._largest = map(torch.tensor, (counts, mean, largest))

    def counted(self):
        return dict.fromkeys("abc", self._counts)

    def by_layer(self, measure):
        found = self._largest if measure == "largest_logit" else self._mean
        return {name: found + more for more, name in enumerate("abc")}


def test_a_share_without_queries_has_no_say():
    """In a head whose queries are all padding on one process; the logits of the others are negative."""
    nan, layers = float("nan"), dict.fromkeys("abc", Layer.among({0: Seat(2, 0, 6, 0)}, 0))
    probes = Seen([3.0, 0.0], [1.0, nan], [-4.0, nan]), Seen([1.0, 2.0], [5.0, 7.0], [-2.0, -3.0])
    table = sum(table_of(each, layers, at, 2, torch.device("cpu")) for at, each in enumerate(probes))
    seen = SeenByAll(layers, table, None, [*layers], {})
    for more, name in enumerate(layers):
        assert seen.by_layer("entropy")[name].tolist() == [2.0 + more, 7.0 + more]
        assert seen.by_layer("largest_logit")[name].tolist() == [-2.0 + more, -3.0 + more]


def test_a_gram_matrix_that_is_not_finite_has_no_rank():
    leading = {}
    assert _rank_of("w", torch.full((3, 3), torch.nan), leading).isnan()
    assert leading == {}
    assert float(_rank_of("w", torch.diag(torch.tensor([4.0, 1.0, 1.0])), leading)) == pytest.approx(1.5)


class Split:
    """Stands for a DTensor on a mesh of 2 x 3 processes, whose outputs both dimensions split."""

    placements = (SimpleNamespace(dim=0), SimpleNamespace(dim=0))

    def __init__(self, at):
        mesh = torch.arange(6).view(2, 3)
        self.device_mesh = SimpleNamespace(mesh=mesh, size=lambda dim: mesh.shape[dim], get_coordinate=lambda: at)


def test_heads_that_two_dimensions_of_a_mesh_split_are_in_the_order_of_its_processes(monkeypatch):
    monkeypatch.setattr("joma.probes._parallel.is_split", lambda each: isinstance(each, Split))
    found = []
    for at in ((row, column) for row in range(2) for column in range(3)):
        model = torch.nn.Module()
        model.parameters = lambda at=at: [Split(at)]
        team = Team(model)
        assert team.ranks == (0, 1, 2, 3, 4, 5)
        found.append(team.part("Module"))
    assert found == [0, 1, 2, 3, 4, 5]
