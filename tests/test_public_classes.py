"""Every public class says in one line what it is, and in its help what it is made of."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from joma import data, measure, models, monitor, optim, probes, runs, scan, theory, training
from joma.data.ahead import Ahead
from joma.data.latent_sets import Published, Table1Column
from joma.models import Bilinear, Decoder, DecoderConfig, JomaBlock, Llama, LlamaConfig
from joma.models.change import Change
from joma.probes import collect_plain
from joma.scan.sources.downloads import MadeFiles
from joma.theory import cdag, flow, hierarchy, isotropic, linear, radial, salience, scan_snap, spread
from joma.theory.attention import Attention
from joma.training import Ensemble, Optimizer, Origin, SeriesConfig, next_token_loss

LONGEST = 120
BY_MODULE = (theory, measure, models, data)
"""Rooms whose modules are public; of the others only what the room itself hands out is."""
BY_NAME = (probes, monitor, optim, training, runs, scan)
PRIVATE = {MadeFiles}


def modules(room) -> Iterator:
    for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        if not found.name.split(".")[-1].startswith("_"):
            yield importlib.import_module(found.name)


def public_classes() -> dict[str, type]:
    found = {}
    for place in [*(module for room in BY_MODULE for module in modules(room)), *BY_MODULE, *BY_NAME]:
        names = getattr(place, "__all__", None)
        for name, one in vars(place).items():
            here = getattr(one, "__module__", "") == place.__name__ if names is None else name in names
            if inspect.isclass(one) and here and not name.startswith("_") and one.__module__.startswith("joma."):
                found[f"{one.__module__.removeprefix('joma.')}.{one.__name__}"] = one
    return {title: one for title, one in found.items() if one not in PRIVATE}


CLASSES = public_classes()
PLAIN = {title: one for title, one in CLASSES.items() if not issubclass(one, BaseException)}


def block() -> flow.Block:
    u = torch.eye(300, dtype=torch.float64)
    x = torch.full((50, 200), 0.005, dtype=torch.float64)
    g = flow.constant_gradient(torch.ones(50, 3, dtype=torch.float64))
    return flow.Block(x, torch.zeros(50, dtype=torch.long), u[:, :200], u[:, 200:], g)


def decoder(layers: int = 2) -> Decoder:
    return Decoder(DecoderConfig(vocabulary=500, width=64, mlp=128, layers=layers, heads=4), seeds=range(12))


def probe():
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with collect_plain(layer) as found:
        layer(*[torch.zeros(1, 4, 8)] * 3)
    return found


def ensemble() -> Ensemble:
    return Ensemble(
        members=24,
        networks=lambda members: decoder(),
        batch=lambda step, members: (torch.zeros(2, 3), torch.zeros(2, 3)),
        loss=next_token_loss,
        optimizer=Optimizer("adam", rate=tuple([1e-3] * 24)),
        steps=58_580,
        measure_at=tuple(range(100)),
        measures={"entropy": lambda decoder, members: torch.zeros(24)},
    )


def series(folder: Path):
    from safetensors.torch import save_file

    for step in range(0, 400, 10):
        save_file({"h.0.mlp.c_fc.weight": torch.eye(8) + step}, f"{folder}/step{step}.safetensors")
    return scan.open_series(folder, downloads=folder)


def run(folder: Path) -> runs.Run:
    found = runs.Run.create(folder / ("a" * 90 + ".sqlite"), study="demo", config={"lr": list(range(300))})
    found.append("entropy", 0, torch.zeros(30, 40))
    return found


LAW = radial.Gaussian(2)
W = torch.randn(7, 40, 60, generator=torch.Generator().manual_seed(0))
LATENTS = torch.randint(2, (30, 9), generator=torch.Generator().manual_seed(0))
SETS = data.LatentSets.draw(20, (10, 20), 2, generator=torch.Generator().manual_seed(0))
TREE = data.HBLT(3, 2, 0.9, p0=[0.5, 0.5], p_zero=[1.0, 0.2])
MANY = torch.linspace(0.1, 1, 60, dtype=torch.float64)
EXAMPLES = {
    "data.ahead.Ahead": lambda folder: Ahead(lambda steps, members: (), steps=1000),
    "data.facts.Chains": lambda folder: importlib.import_module("joma.data.facts").chains(100, entity=2),
    "data.facts.Reversals": lambda folder: importlib.import_module("joma.data.facts").reversals(200, identity=True),
    "data.hierarchy.HBLT": lambda folder: TREE,
    "data.hypercube.Hypercube": lambda folder: importlib.import_module("joma.data.hypercube").Hypercube(50, 10),
    "data.latent_sets.LatentSets": lambda folder: SETS,
    "data.latent_sets.Published": lambda folder: Published(0.81, 0.05),
    "data.latent_sets.Table1Column": lambda folder: Table1Column(*data.TABLE1[0]),
    "data.python_source.Release": lambda folder: data.python_source.source_release(),
    "data.python_source.PythonTokens": lambda folder: data.python_tokens(256, tokens=2000),
    "data.samples.Sample": lambda folder: TREE.sample(500, generator=torch.Generator().manual_seed(0)),
    "data.statements.Chance": lambda folder: importlib.import_module("joma.data.facts").reversals(200).uniform,
    "data.statements.Statements": lambda folder: importlib.import_module("joma.data.facts").reversals(200).train,
    "data.stroke_digits.Images": lambda folder: importlib.import_module("joma.data.stroke_digits").stroke_digits(
        30, side=28, generator=torch.Generator().manual_seed(0)
    ),
    "data.text.Corpus": lambda folder: data.python_corpus(300, tokens=50_000),
    "measure.active.Agreement": lambda folder: importlib.import_module("joma.measure.active").agreement(
        W.abs(), W, W[:, :1].abs(), 0.2
    ),
    "measure.active.Predictor": lambda folder: importlib.import_module("joma.measure.active").fit_predictor(W, W.abs()),
    "measure.alignment.Alignment": lambda folder: measure.best_neuron_correlation(W[0].mT[:30], LATENTS),
    "measure.alignment.Probe": lambda folder: measure.linear_probe(
        W[0].mT[:30], LATENTS, fresh_activity=W[1].mT[:30], fresh_latents=LATENTS
    ),
    "measure.allocation.Allocation": lambda folder: importlib.import_module("joma.measure.allocation").allocate(
        lambda p: p["w"].sum((-2, -1)), [{"w": W}, {"w": 2 * W}], {"w": ["w"]}
    ),
    "measure.attention.AttentionStats": lambda folder: measure.attention_stats(W[None], W[None], causal=False),
    "measure.embedding.Coherence": lambda folder: measure.coherence(W),
    "measure.intervals.Comparison": lambda folder: importlib.import_module("joma.measure.intervals").compare([1, 2, 4]),
    "measure.intervals.MeanInterval": lambda folder: measure.mean_interval(W),
    "measure.forecast.Backtest": lambda folder: importlib.import_module("joma.measure.forecast").backtest(range(60), W),
    "measure.rebound.Rebound": lambda folder: importlib.import_module("joma.measure.rebound").rebound(W),
    "measure.registry.Measure": lambda folder: measure.registry.MEASURES["sparsity"],
    "measure.registry.Threshold": lambda folder: measure.registry.MEASURES["alpha"].thresholds[0],
    "measure.registry.WeightMeasure": lambda folder: measure.registry.MEASURES["stable_rank"],
    "measure.sparsity.HeavyHitters": lambda folder: measure.sparsity.heavy_hitters(W[None], W[None], 2, causal=False),
    "measure.sparsity.SparsityStats": lambda folder: measure.sparsity.sparsity_stats(W[None], W[None], causal=False),
    "measure.sparsity.Stability": lambda folder: measure.sparsity.Stability(W, W),
    "measure.power_law.PowerLaw": lambda folder: importlib.import_module("joma.measure.power_law").power_law(
        torch.rand(50, 30) + 1
    ),
    "measure.spectrum.Spectrum": lambda folder: importlib.import_module("joma.measure.spectrum").spectrum(W),
    "measure.spread.Factors": lambda folder: importlib.import_module("joma.measure.spread").factors(
        W, W, W[0], variance=MANY[:7]
    ),
    "measure.spread.Spread": lambda folder: importlib.import_module("joma.measure.spread").spread(W[None], W[None]),
    "measure.spread.SpreadSums": lambda folder: importlib.import_module("joma.measure.spread").spread_sums(
        W[None], W[None]
    ),
    "measure.superposition.Superposition": lambda folder: importlib.import_module(
        "joma.measure.superposition"
    ).superposition(W[0], torch.zeros(40, 60, dtype=torch.long), torch.arange(40)[:, None]),
    "models.bilinear.Bilinear": lambda folder: Bilinear(1_000, 2_000, range(3), queries=50, norm="softmax"),
    "models.block.JomaBlock": lambda folder: JomaBlock(torch.eye(300)[:, :200], torch.eye(300)[:, 200:], nodes=20),
    "models.change.Change": lambda folder: Change(),
    "models.decoder.Decoder": lambda folder: decoder(),
    "models.decoder.DecoderConfig": lambda folder: DecoderConfig(vocabulary=28_782, layers=4, heads=8, dropout=0.1),
    "models.llama.Llama": lambda folder: Llama(LlamaConfig(vocabulary=500, width=64, mlp=172, heads=4, layers=2)),
    "models.llama.LlamaConfig": lambda folder: LlamaConfig(layers=12),
    "monitor.alert.Alert": lambda folder: monitor.Alert(300, "entropy", "h.0.attn" * 9, 2, 0.1, 0.2, "below its limit"),
    "monitor.alarms.EntropyFall": lambda folder: monitor.EntropyFall(),
    "monitor.alarms.EntropyFloor": lambda folder: monitor.EntropyFloor(0.05),
    "monitor.alarms.LargestLogit": lambda folder: monitor.LargestLogit(50),
    "monitor.alarms.NotFinite": lambda folder: monitor.NotFinite(),
    "monitor.alarms.RankDrop": lambda folder: monitor.RankDrop(),
    "monitor.attach.Monitor": lambda folder: monitor.Monitor(torch.nn.Linear(2, 2), probe=[[1, 2]]),
    "monitor.sinks.jsonl.JsonLines": lambda folder: monitor.JsonLines(folder / ("a" * 200 + ".jsonl")),
    "optim.apollo.APOLLO": lambda folder: optim.APOLLO(torch.nn.Linear(64, 64), rank=4),
    "optim.apollo.Fira": lambda folder: optim.Fira(torch.nn.Linear(64, 64), rank=4),
    "optim.galore.GaLore": lambda folder: optim.GaLore(torch.nn.Linear(64, 64), rank=4),
    "optim._groups.Projected": lambda folder: optim.Projected(smallest=64),
    "optim._groups.Refresh": lambda folder: optim.Refresh(every=100, stagger=False),
    "optim.muon.Muon": lambda folder: optim.Muon([torch.nn.Parameter(torch.zeros(8, 9))]),
    "optim.memory.Memory": lambda folder: optim.memory(line := torch.nn.Linear(64, 64), optim.GaLore(line, rank=4)),
    "optim.projector.Projector": lambda folder: optim.find_projector(torch.ones(8, 9), 2),
    "optim.projector.Energy": lambda folder: optim.Energy(0.9, most=256),
    "probes._record.Probe": lambda folder: probe(),
    "probes._sparsity.AttentionSparsity": lambda folder: probes.AttentionSparsity(*[W] * 6),
    "runs.store.Run": run,
    "scan.result.curves.Curve": lambda folder: scan.Curve(
        "stable_rank", "mlp", ("h.0",) * 30, ("stable rank",), W.numpy()
    ),
    "scan.result.curves.Scan": lambda folder: scan.Scan("out/trainer", list(range(300)), [], {}),
    "scan.errors.Fault": lambda folder: scan.Fault(10, "step10", "model.safetensors", None, "is cut off " * 30),
    "scan.sweep.plan.Plan": lambda folder: scan.plan(series(folder)),
    "scan.sources.series.Series": series,
    "theory._bilinear_flow.Path": lambda folder: scan_snap.ScanSnap([[0.5, 0.5]]).solve(MANY),
    "theory._bilinear_flow.ScanSnap": lambda folder: scan_snap.ScanSnap(torch.eye(60).double(), rate_y=MANY),
    "theory._bilinear_flow.Weights": lambda folder: scan_snap.ScanSnap([[0.5, 0.5]]).start(),
    "theory._critical.CriticalPoint": lambda folder: isotropic.decayed_point(MANY, 1.0, 1.0, LAW, 0.1),
    "theory._critical.CriticalRay": lambda folder: isotropic.critical_rays(MANY, radial.StudentT(2, 3.0)),
    "theory._critical.Linearisation": lambda folder: isotropic.printed_linearisation(
        [2.0, 0.0], -1.0, [2.0, 0.0], 1.0, 1.0, LAW
    ),
    "theory._dilution.Reads": lambda folder: spread.reads(MANY / 100, 8),
    "theory._mixture.HyperplaneMean": lambda folder: isotropic.hyperplane_mean([2.0, 0.0], MANY, [0.0, 1.0], LAW),
    "theory._mixture.Thetas": lambda folder: isotropic.thetas(MANY, LAW),
    "theory._mixture.Velocity": lambda folder: isotropic.velocity([1.0, 0.0], MANY, [[1.0, 0.0]], [1.0], LAW),
    "theory.attention.Attention": lambda folder: Attention("softmax", temperature=2.0),
    "theory.cdag.AngleCondition": lambda folder: cdag.angle_condition(MANY, MANY + 1, MANY, MANY),
    "theory.cdag.Gated": lambda folder: cdag.gate_counter_example(),
    "theory.cdag.Signals": lambda folder: cdag.counter_example(),
    "theory.flow.Block": lambda folder: block(),
    "theory.flow.State": lambda folder: flow.State(W, W),
    "theory.galore.Bytes": lambda folder: importlib.import_module("joma.theory.galore").adam_bytes(512, 1376),
    "theory.galore.Parts": lambda folder: importlib.import_module("joma.theory.galore").split(
        torch.ones(9, 9), [torch.eye(9)], [torch.eye(9)]
    ),
    "theory.hierarchy.Enumeration": lambda folder: hierarchy.enumerate_tree(2, 2, 0.9, [0.5, 0.5], [0.9, 0.3]),
    "theory.linear.Motion": lambda folder: linear.linear_attention_trajectory(MANY, MANY, z0=1.0),
    "theory.radial.Ball": lambda folder: radial.Ball(3, 2.0),
    "theory.radial.ExponentialRadial": lambda folder: radial.ExponentialRadial(3, 2.0),
    "theory.radial.Gaussian": lambda folder: LAW,
    "theory.radial.RadialDensity": lambda folder: radial.RadialDensity(2, lambda r: torch.exp(-r)),
    "theory.radial.StudentT": lambda folder: radial.StudentT(2, 3.0),
    "theory.reversal.Losses": lambda folder: importlib.import_module("joma.theory.reversal").bilinear_losses(
        torch.zeros(4, 4), torch.eye(4), [[0, 1], [2, 3]]
    ),
    "theory.salience.ConvergenceRatio": lambda folder: salience.convergence_ratio(MANY, 2.0, MANY),
    "theory.scan_snap.GainBounds": lambda folder: scan_snap.gain_bounds(MANY, MANY),
    "training.ensemble.Ensemble": lambda folder: ensemble(),
    "training.ensemble.Origin": lambda folder: Origin("base", at=600),
    "training.optimizers.Optimizer": lambda folder: Optimizer("adam", rate=tuple([1e-3] * 40), clip=0.5),
    "training.series.SeriesConfig": lambda folder: SeriesConfig(layers=12, width=768, heads=12, steps=143_000),
}
LIBRARIES = ("tensorboard.TensorBoard", "wandb.Wandb", "mlflow.MLflow", "trackio.Trackio")  # each needs its library
WITHOUT_OBJECTS = {"theory._radial_law.RadialLaw", *(f"monitor.sinks.{each}" for each in LIBRARIES)}
"""Abstract, or made by what need not be installed."""


def test_every_public_class_has_an_example():
    assert set(PLAIN) - WITHOUT_OBJECTS == set(EXAMPLES)


@pytest.mark.parametrize("title", EXAMPLES)
def test_one_short_line_says_what_it_is(title, tmp_path):
    thing = EXAMPLES[title](tmp_path)
    line = repr(thing)
    assert type(thing) is CLASSES[title]
    assert line.startswith(CLASSES[title].__name__ + "(")
    assert line.endswith(")")
    assert "\n" not in line
    assert "tensor(" not in line
    assert len(line) <= LONGEST
    if isinstance(thing, runs.Run):
        thing.close()
        assert repr(thing).endswith("closed)")


@pytest.mark.parametrize("title", CLASSES)
def test_help_says_what_the_arguments_are(title):
    one = CLASSES[title]
    if title in WITHOUT_OBJECTS or (issubclass(one, BaseException) and "__init__" not in vars(one)):
        assert one.__doc__
        return
    arguments = set(inspect.signature(one).parameters) - {"args", "kwargs"}
    words = set(re.findall(r"\w+", described(one)))
    assert not arguments - words, f"{title} does not say what {sorted(arguments - words)} are"


def described(one: type) -> str:
    """The class's own prose and that of its own constructor; of a named tuple also what stands below its fields."""
    texts = [vars(one).get("__doc__") or ""]
    if "__init__" in vars(one):
        texts.append(one.__init__.__doc__ or "")
        assert dataclasses.is_dataclass(one) or one.__init__.__doc__, f"{one.__name__}.__init__ has no docstring"
    if issubclass(one, tuple):
        texts += fields_with_a_text(one)
    return re.sub(r">>>.*", "", "\n".join(texts))


def fields_with_a_text(one: type) -> list[str]:
    """Of a named tuple, which callers read and do not make: the manual shows what stands below a field."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    pairs = itertools.pairwise(tree.body)
    return [field.target.id for field, text in pairs if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)]


def test_what_torch_or_python_say_of_a_constructor_is_not_enough():
    class Silent(torch.nn.Module):
        def __init__(self, width):
            super().__init__()

    with pytest.raises(AssertionError, match="has no docstring"):
        described(Silent)
    assert "Initialize" not in described(JomaBlock)
