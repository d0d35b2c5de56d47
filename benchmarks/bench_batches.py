"""Steps per second of four studies, with batches drawn at every step and with batches drawn ahead.

All networks of a study train side by side, as its run trains them, at its paper preset on a GPU and at its quick preset
on a CPU. "drawn each step" is how batches were made before `joma.data.Ahead`: numbers of members, and for
python-hierarchy the places in the text, were copied from ordinary memory at every step. "one fixed batch" is the floor:
training alone. On a GPU the operations that stop the host until the device has caught up are counted, for 10 batches of
every ensemble.

    python benchmarks/bench_batches.py [--device cuda] [--studies cdag,hblt-alignment] [--seconds 1.5] [--record]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from _record import record
from torch import Tensor

from joma.data.samples import streams
from joma.studies import load
from joma.studies.cdag.cdag import run as cdag
from joma.studies.hierarchy import hblt_alignment
from joma.studies.hierarchy._networks import ensemble_of
from joma.studies.hierarchy.hblt_alignment import Members
from joma.studies.hierarchy.shallow_first import run as shallow_first
from joma.studies.hierarchy.shallow_first.study import STUDY as SHALLOW_FIRST
from joma.studies.syntax.python_hierarchy import run as python_hierarchy
from joma.studies.syntax.python_hierarchy.run import Half, Latents, Material
from joma.training import Ensemble, class_loss
from joma.training.engine import Engine, room_to_compile
from joma.training.trainer import products

Batch = Callable[[int, Sequence[int]], tuple[Tensor, ...]]
Both = dict[str, tuple[Ensemble, Batch]]
"""Of each ensemble of a study: itself, and its batches as they were made before."""


def preset(study: object, device: str) -> object:
    return replace(study.paper if device == "cuda" else study.quick, device=device)


def hblt(device: str) -> Both:
    config = preset(hblt_alignment.STUDY, device)

    def before(who: Members) -> Batch:
        def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
            source = streams(config.seed, [who.number[m] for m in members], step, device=device)
            index = torch.as_tensor(members, device=device)
            tree = who.tree._changed(lambda table: table[index])
            sample = tree.sample((len(members), config.batch), generator=source)
            return sample.tokens, sample.labels

        return batch

    everyone = {f"depth {depth}": Members(config, depth) for depth in config.depths}
    return {name: (ensemble_of(who, class_loss), before(who)) for name, who in everyone.items()}


def trees(device: str) -> Both:
    config = preset(SHALLOW_FIRST, device)
    setting = shallow_first.Setting(config)
    pool = setting.pool

    def where(size: int, step: int, members: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
        some = torch.as_tensor(list(members), device=device)
        return some, torch.arange(step * size, (step + 1) * size, device=device) % count

    def blocks(name: str) -> Batch:
        def batch(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
            some, turn = where(config.block_batch, step, members, pool.with_query.shape[-1])
            sample = pool.with_query[some][..., turn]
            member = some[:, None, None].expand_as(sample)
            token = torch.arange(pool.on.shape[-1], device=device)
            x = pool.on[member, sample] & (token[:, None, None] != token)
            if name.endswith("class"):
                return x.float(), pool.labels[member, sample]
            first, second = pool.left_out[member, sample], pool.reading[member, sample][..., -1]
            target = torch.where(first == token[:, None], second, first)
            return (x & (target[..., None] != token)).float(), target

        return batch

    def decoders(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        some, turn = where(config.decoder_batch, step, members, pool.on.shape[1])
        return pool.reading[some][:, turn], pool.left_out[some][:, turn]

    return {
        name: (shallow_first.ensemble_of(setting, name), decoders if name == shallow_first.DECODER else blocks(name))
        for name in shallow_first.NETWORKS
    }


def signals(device: str) -> Both:
    config = preset(load("cdag"), device)
    tree = cdag.HBLT.one_per_class(config.classes, config.branching, config.rho).to(device)
    x, labels, _ = cdag.draw_samples(config, tree, config.samples, 0)

    def before(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        turn = torch.arange(step * config.batch, (step + 1) * config.batch, device=device) % config.samples
        some = torch.as_tensor(list(members), device=device)[:, None]
        return x[some, turn], labels[some, turn]

    return {name: (ensemble, before) for name, ensemble in cdag.ensembles(config).items()}


def source_code(device: str) -> Both:
    """Tokens at random: only how long they take to fetch counts."""
    config = preset(load("python-hierarchy"), device)
    seeds = [*range(config.seeds), *range(config.shuffled)]
    train = torch.randint(config.vocabulary, (int(config.tokens * (1 - config.held_out)),))
    nothing = Half(*(torch.zeros(len(seeds), 1) for _ in range(3)))
    material = Material(train, Latents(*(torch.zeros(1) for _ in range(4))), nothing, nothing, (1, 1))
    texts = torch.stack([train, train[torch.randperm(len(train))]]).to(device)
    offsets = torch.arange(config.context + 1, device=device)

    def before(step: int, members: Sequence[int]) -> tuple[Tensor, ...]:
        places, most = [], texts.shape[1] - config.context
        for member in members:
            generator = torch.Generator().manual_seed(seeds[member] * 1_000_003 + step)
            places.append(torch.randint(most, (config.batch,), generator=generator))
        text = torch.tensor([int(member >= config.seeds) for member in members])
        where = torch.stack([text[:, None].expand(-1, config.batch), torch.stack(places)]).to(device)
        windows = texts[where[0, ..., None], where[1, ..., None] + offsets]
        return windows[..., :-1], windows[..., 1:]

    return {"": (python_hierarchy.make_ensemble(config, config.vocabulary, material, seeds), before)}


STUDIES = {"cdag": signals, "python-hierarchy": source_code, "hblt-alignment": hblt, "shallow-first": trees}


def side_by_side(engines: Mapping[str, Engine], steps: int) -> None:
    """So many steps of all of them, in turns, as the trainer makes them."""
    going = [engine.advance(0, steps) for engine in engines.values()]
    while going:
        going = [one for one in going if next(one, None) is not None]


def pace(engines: Mapping[str, Engine], batches: Mapping[str, Batch], seconds: float) -> float:
    """Steps per second of all engines with these batches: the faster of two rounds."""
    for name, engine in engines.items():
        engine.ensemble = replace(engine.ensemble, batch=batches[name])
    most = min(engine.ensemble.steps for engine in engines.values())
    few = min(10, most)
    steps = round(few * seconds / timed(engines, few))
    steps = max(few, min(steps, most))
    return steps / min(timed(engines, steps) for _ in range(2))


def timed(engines: Mapping[str, Engine], steps: int) -> float:
    wait()
    begin = time.perf_counter()
    side_by_side(engines, steps)
    wait()
    return time.perf_counter() - begin


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def waits(batches: Mapping[str, Batch], members: Mapping[str, range]) -> float | None:
    """How often 10 batches of each ensemble stop the host, per batch; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    for name, batch in batches.items():
        batch(0, members[name])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for step in range(1, 11):
            for name, batch in batches.items():
                batch(step, members[name])
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in said) / (10 * len(batches))


def measure(study: str, device: str, seconds: float) -> dict[str, object]:
    both = STUDIES[study](device)
    members = {
        name: range(min(ensemble.together or ensemble.members, ensemble.members))
        for name, (ensemble, _) in both.items()
    }
    precision = next(iter(both.values()))[0].precision
    engines = {name: Engine(ensemble, members[name]) for name, (ensemble, _) in both.items()}
    for name, engine in engines.items():
        engine.load_members(members[name], None)
    ways = {
        "drawn each step": {name: before for name, (_, before) in both.items()},
        "drawn ahead": {name: ensemble.batch for name, (ensemble, _) in both.items()},
    }
    fixed = {name: ensemble.batch(0, members[name]) for name, (ensemble, _) in both.items()}
    for name, (ensemble, before) in both.items() if study != "python-hierarchy" else ():
        for step in range(4):
            for one, other in zip(before(step, members[name]), ensemble.batch(step, members[name]), strict=True):
                assert torch.equal(one, other), f"{study}, {name}: batches differ at step {step}"
    row: dict[str, object] = {"study": study, "networks": sum(len(some) for some in members.values())}
    with products(precision):
        begin = time.perf_counter()
        for way, batches in ways.items():
            row[f"{way}, waits per batch"] = waits(batches, members)
        side_by_side(engines, min(6, *(engine.ensemble.steps for engine in engines.values())))  # compiles
        wait()
        row["seconds to the sixth step"] = time.perf_counter() - begin
        same = {name: lambda step, who, held=held: held for name, held in fixed.items()}
        for way, batches in (ways | {"one fixed batch": same}).items():
            row[f"{way}, steps/s"] = pace(engines, batches, seconds)
    row["times faster"] = row["drawn ahead, steps/s"] / row["drawn each step, steps/s"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    rows = []
    for study in options.studies.split(","):
        with room_to_compile() if gpu else nullcontext():
            rows.append(measure(study, options.device, options.seconds))
        print(*(f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in rows[-1].items()), sep=", ")
        record("batches", rows, on="" if gpu else "cpu")  # each row at once: time may run out


if __name__ == "__main__":
    main()
