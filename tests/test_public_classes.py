"""Every public class says in one line what it is, and in its help what it is made of."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from joma import data, measure, models, monitor, optim, probes, runs, scan, theory, training
from joma.data.ahead import Ahead
from joma.data.latent_sets import Published
from joma.models import Bilinear, Decoder, DecoderConfig, JomaBlock, Llama, LlamaConfig
from joma.models.change import Change
from joma.probes import collect_plain
from joma.scan.sources.downloads import MadeFiles
from joma.theory import radial
from joma.training import Origin

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


def decoder(layers: int = 2) -> Decoder:
    return Decoder(DecoderConfig(vocabulary=500, width=64, mlp=128, layers=layers, heads=4), seeds=range(12))


def probe():
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    with collect_plain(layer) as found:
        layer(*[torch.zeros(1, 4, 8)] * 3)
    return found


def run(folder: Path) -> runs.Run:
    found = runs.Run.create(folder / ("a" * 90 + ".sqlite"), study="demo", config={"lr": list(range(300))})
    found.append("entropy", 0, torch.zeros(30, 40))
    return found


LAW = radial.Gaussian(2)
W = torch.randn(7, 40, 60, generator=torch.Generator().manual_seed(0))
TREE = data.HBLT(3, 2, 0.9, p0=[0.5, 0.5], p_zero=[1.0, 0.2])
EXAMPLES: dict[str, Callable[[Path], object]] = {
    "data.ahead.Ahead": lambda folder: Ahead(lambda steps, members: (), steps=1000),
    "data.facts.Chains": lambda folder: importlib.import_module("joma.data.facts").chains(100, entity=2),
    "data.facts.Reversals": lambda folder: importlib.import_module("joma.data.facts").reversals(200, identity=True),
    "data.hierarchy.HBLT": lambda folder: TREE,
    "data.latent_sets.Published": lambda folder: Published(0.81, 0.05),
    "data.python_source.Release": lambda folder: data.python_source.source_release(),
    "models.bilinear.Bilinear": lambda folder: Bilinear(1_000, 2_000, range(3), queries=50, norm="softmax"),
    "models.block.JomaBlock": lambda folder: JomaBlock(torch.eye(300)[:, :200], torch.eye(300)[:, 200:], nodes=20),
    "models.change.Change": lambda folder: Change(),
    "models.decoder.Decoder": lambda folder: decoder(),
    "models.llama.Llama": lambda folder: Llama(LlamaConfig(vocabulary=500, width=64, mlp=172, heads=4, layers=2)),
    "monitor.alarms.EntropyFall": lambda folder: monitor.EntropyFall(),
    "monitor.alarms.EntropyFloor": lambda folder: monitor.EntropyFloor(0.05),
    "monitor.alarms.LargestLogit": lambda folder: monitor.LargestLogit(50),
    "monitor.alarms.NotFinite": lambda folder: monitor.NotFinite(),
    "monitor.alarms.RankDrop": lambda folder: monitor.RankDrop(),
    "monitor.attach.Monitor": lambda folder: monitor.Monitor(torch.nn.Linear(2, 2), probe=[[1, 2]]),
    "monitor.sinks.jsonl.JsonLines": lambda folder: monitor.JsonLines(folder / ("a" * 200 + ".jsonl")),
    "optim.apollo.APOLLO": lambda folder: optim.APOLLO(torch.nn.Linear(64, 64), rank=4),
    "optim.apollo.Fira": lambda folder: optim.Fira(torch.nn.Linear(64, 64), rank=4),
    "optim.galore.FromModel": lambda folder: optim.FromModel(),
    "optim.galore.GaLore": lambda folder: optim.GaLore(torch.nn.Linear(64, 64), rank=4),
    "optim._groups.Projected": lambda folder: optim.Projected(conv=True),
    "optim.qk_clip.QKClip": lambda folder: optim.QKClip(torch.nn.Linear(2, 2)),
    "optim.muon.Muon": lambda folder: optim.Muon([torch.nn.Parameter(torch.zeros(8, 9))]),
    "optim.memory.Memory": lambda folder: optim.memory(line := torch.nn.Linear(64, 64), optim.GaLore(line, rank=4)),
    "probes._record.Probe": lambda folder: probe(),
    "runs.store.Run": run,
    "theory.radial.Ball": lambda folder: radial.Ball(3, 2.0),
    "theory.radial.ExponentialRadial": lambda folder: radial.ExponentialRadial(3, 2.0),
    "theory.radial.Gaussian": lambda folder: LAW,
    "theory.radial.StudentT": lambda folder: radial.StudentT(2, 3.0),
    "training.ensemble.Origin": lambda folder: Origin("base", at=600),
}
"""Of classes that are no plain records, or whose fields hold no arrays: all others are made full of numbers."""
LIBRARIES = ("tensorboard.TensorBoard", "wandb.Wandb", "mlflow.MLflow", "trackio.Trackio")  # each needs its library
WITHOUT_OBJECTS = {"theory._radial_law.RadialLaw", *(f"monitor.sinks.{each}" for each in LIBRARIES)}
"""Abstract, or made by what need not be installed."""


def full_of_numbers(one: type):
    """A named tuple or dataclass with a tensor in every field; its constructor is not asked."""
    if issubclass(one, tuple):
        return one._make([W] * len(one._fields))
    made = object.__new__(one)
    for field in dataclasses.fields(one):
        object.__setattr__(made, field.name, W)
    return made


@pytest.mark.parametrize("title", sorted(set(PLAIN) - WITHOUT_OBJECTS))
def test_one_short_line_says_what_it_is(title, tmp_path):
    thing = EXAMPLES[title](tmp_path) if title in EXAMPLES else full_of_numbers(CLASSES[title])
    line, *groups = repr(thing).splitlines()
    assert not groups or isinstance(thing, torch.optim.Optimizer)  # an optimizer says what each of its groups has
    assert type(thing) is CLASSES[title]
    assert line.startswith(CLASSES[title].__name__ + "(")
    assert line.endswith(")")
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
