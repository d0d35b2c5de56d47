"""What QK-clip at every step costs a training run: steps with and without it, and two other ways to the same numbers.

    python benchmarks/bench_qkclip.py [--device cuda] [--rounds 15] [--record]

On a GPU: GPT-2 small, batch 8 x 1024, bf16 autocast, fast attention, as it is written and compiled. On a CPU: a tiny
model, to try it. Steps with and without take turns, so that a machine that slows down does so for both. Peers: a
hand-written hook that writes the attention maps out and takes their maximum, and FlexAttention's max_scores, whose
twelve layers are timed alone. `agree` is how far the largest logits of the hook lie from those of `QKClip`, at most.
`bits` says whether weights after some steps below the threshold are the same with and without, and, as its control,
without and without: by attention written out, as fast attention is not the same twice. Rounds of the peer are a third.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products

import argparse
import statistics
import time
from contextlib import contextmanager
from functools import partial

import torch
from _record import record
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

from joma.measure._largest import again, largest_products
from joma.optim import QKClip

GOAL = 0.02
CHUNK, ROUNDS = 20, 15
SMALL = {"batch": 2, "length": 16, "vocabulary": 50, "layers": 2, "heads": 2, "width": 16}
LARGE = {"batch": 8, "length": 1024, "vocabulary": 50_257, "layers": 12, "heads": 12, "width": 768}


def model_of(size, device):
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=size["vocabulary"], n_positions=size["length"], n_embd=size["width"], n_layer=size["layers"],
        n_head=size["heads"], bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT2LMHeadModel(shape).to(device).train()


def stepper(model, size, device, called=None):
    """One step of training per call, and then `after`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    generator = torch.Generator().manual_seed(0)
    shape = (4, size["batch"], size["length"])
    batches = torch.randint(size["vocabulary"], shape, generator=generator).to(device)
    count = 0

    def step(after=lambda: None):
        nonlocal count
        ids, count = batches[count % 4], count + 1
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = (model if called is None else called)(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        after()

    return step


def seconds(call, times=1):
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    wait()
    return time.perf_counter() - start


@contextmanager
def clipping(model, called=None):
    clip = QKClip(model if called is None else called)
    try:
        yield clip
    finally:
        clip.remove()


@contextmanager
def writing_out(model, called=None):
    """The hook that people write: maps of all layers whole, their maximum, and the same scaling of weights."""
    found, handles = {}, []

    def hook(name, layer, inputs, output):
        q, k, _ = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in output.detach().chunk(3, -1))
        maps = q @ k.mT / q.shape[-1] ** 0.5
        hidden = torch.ones(maps.shape[-2:], dtype=torch.bool, device=maps.device).triu(1)
        found[name] = maps.masked_fill(hidden, -torch.inf).amax((0, 2, 3)).float()

    heads = model.config.n_head
    for at, block in enumerate(model.transformer.h):
        handles.append(block.attn.c_attn.register_forward_hook(partial(hook, at)))

    class Hook:
        largest = found

        @torch.no_grad()
        def step(self):
            for at, block in enumerate(model.transformer.h):
                factor = (100.0 / found[at]).clamp(max=1.0).sqrt().repeat_interleave(model.config.n_embd // heads)
                for part in (block.attn.c_attn.weight, block.attn.c_attn.bias):
                    part[..., : 2 * len(factor)].mul_(factor.repeat(2))

    try:
        yield Hook()
    finally:
        for each in handles:
            each.remove()


def overhead(step, attaching, rounds):
    """Milliseconds of a plain step, and how much more one with a clip takes, as shares: first quarter, median, last."""
    pairs = []
    for _ in range(rounds + 1):
        plain = seconds(step, CHUNK)
        with attaching() as clip:
            seconds(partial(step, clip.step), 3)
            pairs.append((plain, seconds(partial(step, clip.step), CHUNK)))
    pairs = pairs[1:]  # of the first round, some steps compiled
    plain = statistics.median(one for one, _ in pairs)
    low, middle, high = statistics.quantiles([(other - one) / plain for one, other in pairs], n=4)
    least = min(other for _, other in pairs) / min(one for one, _ in pairs) - 1
    return {"step_milliseconds": 1e3 * plain / CHUNK, "overhead": middle, "quarters": [low, high], "least": least}


def agree(model, step):
    """Largest difference of the two ways on the same pass: rounding of bfloat16 in the maps."""
    with clipping(model) as clip, writing_out(model) as hook:
        step(clip.step)
        pairs = zip(clip.largest.values(), hook.largest.values(), strict=True)
        return max(float((one.float() - other).abs().max()) for one, other in pairs)


def bits(size, device):
    """Of training without, with and without: whether the second ends as the first, and the third as the first."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    ends = []
    for clipped in (False, True, False):
        model = model_of(size, device)
        step = stepper(model, size, device)
        if clipped:
            with clipping(model) as clip:
                for _ in range(5):
                    step(clip.step)
        else:
            for _ in range(5):
                step()
        ends.append([each.detach().clone() for each in model.parameters()])
    torch.use_deterministic_algorithms(False)
    with_it, without = (all(map(torch.equal, ends[0], end)) for end in ends[1:])
    return {"same": with_it, "same_without": without}


def of_layers(call, size, times=20):
    """Milliseconds of a call for each layer, at best."""
    seconds(call, 5)
    return 1e3 * size["layers"] * min(seconds(call, times) / times for _ in range(9))


def alone(size, device):
    """Milliseconds of the largest products of all layers, without the training around them."""
    shape = (2, size["batch"], size["heads"], size["length"], size["width"] // size["heads"])
    q, k = torch.randn(shape, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    once = of_layers(partial(largest_products, q, k), size)
    found = largest_products(q, k)
    call = again(q, k, None, None, {"causal": True, "scale": None})
    return {"milliseconds": once} | (
        {} if call is None else {"again": of_layers(partial(call, q, k, None, found), size)}
    )


def max_scores(size, device):
    """Milliseconds of all layers' attention in FlexAttention, without and with the largest score of every query."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    if device != "cuda":
        raise RuntimeError("FlexAttention is compiled for a GPU")
    shape = (3, size["batch"], size["heads"], size["length"], size["width"] // size["heads"])
    q, k, v = torch.randn(shape, device=device, dtype=torch.bfloat16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, size["length"], size["length"], device=device)
    fast = torch.compile(flex_attention)
    found = [
        of_layers(partial(fast, q, k, v, block_mask=mask, return_aux=aux), size)
        for aux in (None, AuxRequest(max_scores=True))
    ]
    return {"without_milliseconds": found[0], "milliseconds": found[1], "adds_milliseconds": found[1] - found[0]}


def rows(size, device, rounds):
    model = model_of(size, device)
    step = stepper(model, size, device)
    seconds(step, 3)
    yield {"what": "agree", "largest_difference": agree(model, step)}
    yield {"what": "QKClip, every step", **overhead(step, partial(clipping, model), rounds), "goal": GOAL}
    yield {
        "what": "peer: hook that writes maps out",
        **overhead(step, partial(writing_out, model), max(rounds // 3, 2)),
    }
    yield {"what": "largest products of all layers, alone", **alone(size, device)}
    try:
        yield {"what": "peer: FlexAttention max_scores, all layers", **max_scores(size, device)}
    except (ImportError, RuntimeError) as error:
        yield {"what": "peer: FlexAttention max_scores, all layers", "not_run": str(error)}
    if device == "cuda":
        code = torch.compile(model)
        compiled = stepper(model, size, device, code)
        seconds(compiled, 3)
        yield {
            "what": "QKClip, every step, compiled",
            **overhead(compiled, partial(clipping, model, code), rounds),
            "goal": GOAL,
        }
    with sdpa_kernel(SDPBackend.MATH):
        yield {"what": "bits", **bits(size, device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", action="store_true", help="write results/bench_qkclip.json")
    given = parser.parse_args()
    found = []
    for row in rows(LARGE if given.device == "cuda" else SMALL, given.device, given.rounds):
        found.append(row)
        print(row, flush=True)
    record("qkclip", found)


if __name__ == "__main__":
    main()
