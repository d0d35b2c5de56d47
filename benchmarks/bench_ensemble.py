"""Training networks as one ensemble against training them one after the other in plain eager PyTorch.

Shapes: `table1` at width d (3 blocks, no output projection, MLP 4d, sequences of 30, batch 128, Adam, weight decay);
`fig8` (5 blocks of width 200, vocabulary 28,782, 20 x 35 tokens, dropout 0.2, Adam, clipped); and `fig6`, the same with
1, 2, 5 and 10 blocks, five networks each, all four ensembles at work at once.

The peer is the same network as nn modules, torch.optim.Adam and clip_grad_norm_, at equal precision of its matrix
products (`half` is put beside TF32, which has as many bits), and on a CPU with the same libraries, though PyTorch's
default of using oneDNN would slow the peer down many times on Arm. For table1 the arithmetic rate is put beside what
one large TF32 product reaches on the same machine in the same run; for fig8 and fig6 the time beside what their
unavoidable memory traffic would take; for fig6 the peer is the four ensembles one after the other.

    python benchmarks/bench_ensemble.py [--device cuda] [--shapes table1-256-tf32,fig8-half-logits] [--record]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from _record import record
from peer_decoder import PeerDecoder, peer_step

from joma.models import Decoder, DecoderConfig
from joma.training import Ensemble, Optimizer, class_loss, next_token_loss
from joma.training.engine import Engine, room_to_compile
from joma.training.trainer import fitting
from joma.training.trainer import products as products_made

TABLE1 = DecoderConfig(
    vocabulary=100, outputs=10, layers=3, width=1024, mlp=4096, context=30, projection=False, causal=True
)
FIG8 = DecoderConfig(vocabulary=28_782, layers=5, width=200, mlp=200, context=35, dropout=0.2, copies=True)


def table1(width: int, members: int, device: str, precision: str = "tf32") -> Ensemble:
    config = TABLE1.with_(width=width, mlp=4 * width)
    tokens = torch.randint(100, (members, 128, 30), device=device)
    labels = torch.randint(10, (members, 128), device=device)
    return Ensemble(
        members, lambda who: Decoder(config, list(who)), lambda step, who: (tokens[: len(who)], labels[: len(who)]),
        class_loss, Optimizer("adam", rate=1e-4, weight_decay=1e-4), steps=10**6, device=device, precision=precision,
    )  # fmt: skip


def fig8(members: int, device: str, precision: str = "half-logits", layers: int = 5) -> Ensemble:
    config = FIG8.with_(layers=layers)
    text = torch.randint(FIG8.vocabulary, (20, 36), device=device)
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return Ensemble(
        members, lambda who: Decoder(config, list(who)), lambda step, who: batch, next_token_loss,
        Optimizer("adam", rate=1e-4, clip=0.5), steps=10**6, device=device, precision=precision,
    )  # fmt: skip


def seconds(work: Callable[[int], None], device: str, *, warm: int, steps: int, rounds: int = 3) -> float:
    """A step's time: the fastest of a few rounds."""
    work(warm)
    best = float("inf")
    for _ in range(rounds):
        wait(device)
        begin = time.perf_counter()
        work(steps)
        wait(device)
        best = min(best, (time.perf_counter() - begin) / steps)
    return best


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ensemble_step(ensemble: Ensemble, *, steps: int) -> tuple[float, Engine]:
    """Seconds a member and step, in groups as large as the trainer would make them; and the engine."""
    members = range(fitting(ensemble))
    engine = Engine(ensemble, members)
    engine.load_members(members, None)
    made = 0

    def work(count: int) -> None:
        nonlocal made
        for _ in engine.advance(made, made + count):
            pass
        made += count

    with products_made(ensemble.precision):
        time_of_all = seconds(work, ensemble.device, warm=6 if ensemble.device == "cuda" else 1, steps=steps)
    return time_of_all / len(members), engine


def peer(ensemble: Ensemble, config: DecoderConfig, *, steps: int) -> float:
    network = PeerDecoder(config).to(ensemble.device)
    optimizer = torch.optim.Adam(network.parameters(), 1e-4, weight_decay=ensemble.optimizer.weight_decay)
    batch = tuple(t if t.ndim == 2 and ensemble.loss is next_token_loss else t[0] for t in ensemble.batch(0, [0]))

    def work(count: int) -> None:
        for _ in range(count):
            peer_step(network, optimizer, *batch, clip=ensemble.optimizer.clip)

    with products_made("float32" if ensemble.precision == "float32" else "tf32"):
        return seconds(work, ensemble.device, warm=3, steps=steps)


def tf32_rate() -> float:
    """FLOP/s of one large product."""
    a, b = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
    with products_made("tf32"):
        return 2 * 8192**3 / seconds(lambda n: [a @ b for _ in range(n)] and None, "cuda", warm=3, steps=20)


def products(config: DecoderConfig, tokens: int, read: int) -> float:
    """FLOP of the matrix products in one training step of one network: three times the forward pass."""
    block = config.width * (3 * config.width + (config.width if config.projection else 0) + 2 * config.mlp)
    return 6 * (config.layers * block * tokens + (config.outputs or config.vocabulary) * config.width * read)


def measure_table1(width: int, members: int, device: str, precision: str) -> dict[str, object]:
    whole = table1(width, members, device, precision)
    one, engine = ensemble_step(whole, steps=30 if device == "cuda" else 3)
    del engine
    config = TABLE1.with_(width=width, mlp=4 * width)
    alone = peer(whole, config, steps=30 if device == "cuda" else 3)
    row: dict[str, object] = {
        "shape": f"table1, d = {width}, {precision}", "members": members, "ms a member-step": 1e3 * one,
        "eager ms a step": 1e3 * alone, "times faster a run": alone / one,
    }  # fmt: skip
    if device == "cuda":
        rate, most = products(config, 128 * 30, 128) / one, tf32_rate()
        row |= {"TFLOP/s": rate / 1e12, "one large TF32 product, TFLOP/s": most / 1e12, "share": rate / most}
    return row


def parameters(engine: Engine) -> int:
    """How many numbers one member learns."""
    return sum(p[0].numel() for p in engine.parameters)


def traffic(engine: Engine, precision: str) -> int:
    """Bytes that a step of one language model cannot do without.

    Adam reads weight, gradient and two moments and writes three; the gradient is written, and read for its norm. Logits
    are written, read and written as gradients, and read by two products.
    """
    logits = 20 * 35 * FIG8.vocabulary * (2 if precision == "half-logits" else 4)
    return 9 * 4 * parameters(engine) + 5 * logits


def measure_fig8(members: int, device: str, precision: str) -> dict[str, object]:
    whole = fig8(members, device, precision)
    one, engine = ensemble_step(whole, steps=30)
    least, adam, speed = traffic(engine, precision), 7 * 4 * parameters(engine), memory_speed()
    del engine
    alone = peer(whole, FIG8, steps=30)
    return {
        "shape": f"fig8, {precision}", "members": members, "ms a member-step": 1e3 * one,
        "eager ms a step": 1e3 * alone, "times faster a run": alone / one,
        "floor by memory traffic, ms": 1e3 * least / speed, "floor by Adam alone, ms": 1e3 * adam / speed,
        "minutes for 58,580 steps": one * members * 58_580 / 60,
    }  # fmt: skip


def measure_fig6(members: int, device: str, precision: str) -> dict[str, object]:
    depths = (10, 5, 2, 1)  # the slowest first, as it is what the others wait for
    engines = [
        Engine(fig8(members, device, precision, layers), range(members), urgent=layers == 10) for layers in depths
    ]
    for engine in engines:
        engine.load_members(range(members), None)
    made = 0

    def work(count: int, *, at_once: bool) -> None:
        nonlocal made
        for engine in engines:
            for _ in engine.advance(made, made + count):  # given to the device, not waited for
                pass
            if not at_once:
                wait(device)
        made += count

    with products_made(precision):
        after = seconds(partial(work, at_once=False), device, warm=6, steps=100)
        together = seconds(partial(work, at_once=True), device, warm=6, steps=100)
    floor = members * sum(traffic(engine, precision) for engine in engines) / memory_speed()
    return {
        "shape": f"fig6, {precision}", "members": members * len(depths), "ms a step of all": 1e3 * together,
        "one after the other, ms": 1e3 * after, "times faster": after / together,
        "floor by memory traffic, ms": 1e3 * floor,
        "minutes for 58,580 steps": together * 58_580 / 60,
    }  # fmt: skip


def memory_speed() -> float:
    """Bytes a second of one large copy."""
    a = torch.empty(2**28, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / seconds(lambda n: [b.copy_(a) for _ in range(n)] and None, "cuda", warm=3, steps=20)


def measure(shape: str, device: str) -> dict[str, object]:
    kind, *rest = shape.split("-")
    if kind == "fig8":
        return measure_fig8(21, device, "-".join(rest))
    if kind == "fig6":
        return measure_fig6(5, device, "-".join(rest))
    members = {1024: 12, 256: 60}[int(rest[0])] if device == "cuda" else 6
    return measure_table1(int(rest[0]), members, device, rest[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    usual = (
        "fig8-half-logits,fig6-half-logits,table1-1024-half,table1-256-tf32"
        if gpu
        else "table1-16-float32,table1-64-float32,table1-256-float32"
    )
    rows = []
    for shape in (options.shapes or usual).split(","):
        with room_to_compile() if gpu else nullcontext():
            rows.append(measure(shape, options.device))
        print(*(f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in rows[-1].items()), sep=", ")
        record("ensemble", rows, on="" if gpu else "cpu")  # each row at once: a later shape may not fit


if __name__ == "__main__":
    main()
