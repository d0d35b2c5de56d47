"""`evaluate`: one call from a model and a text to what every eviction policy costs. `joma cache` prints its answer."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from joma.cache._positions import rotations
from joma.cache.costs import SHORTEST, Costs, measure
from joma.cache.models import cannot_be_cut, default_seq_len, must_be_cached
from joma.cache.own import Policy
from joma.cache.rules import POLICIES, CacheError, must_be_distinct, name_of, rule
from joma.host.devices import lacking
from joma.host.errors import BadInput, as_bad_input
from joma.host.files import refuse_files, usable_folder
from joma.host.progress import Progress, silent
from joma.host.words import counted
from joma.probes.lengths import beyond_training, must_take, unknown_training
from joma.runs import Run

if TYPE_CHECKING:
    from joma.scan.sources.series import Place

BUDGETS = (0.05, 0.1, 0.2, 0.5)
N_TOKENS = 16_384
VERSION = 2  # raised when what is measured changes: runs of before are not added to


def evaluate(
    model: nn.Module | str | Path,
    text: Any,
    *,
    policies: Sequence[str | Policy] = POLICIES[1:],
    budgets: Sequence[float] = BUDGETS,
    seq_len: int | None = None,
    tokens: int = N_TOKENS,
    sinks: int | None = None,
    recent: float = 0.5,
    seed: int = 0,
    tokenizer: str | Path | None = None,
    step: str | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    fresh: bool = False,
    progress: Progress = silent,
    notify: Callable[[str], object] = lambda sentence: None,
) -> Costs:
    """What every policy costs at every budget: the added loss in nats per token, with paired 95 % intervals.

    The answer prints as a table (`costs.table()`), is drawn by `joma.cache.drawing.draw(costs)`, and has the numbers of
    the figure in `costs.of`: share kept, added loss and half-width of its interval, by policy.

    - model: a causal language model of transformers; or a folder with one; or one on the Hugging Face hub (owner/name)
    - text: a file of text; or token ids, as a .npy file, a tensor or a list, of one text or (sequences, seq_len)
    - policies: names among `joma.cache.POLICIES`, or functions of your own; full attention is measured anyway
    - budgets: shares of a sequence, as 0.1, or numbers of keys where they are integers
    - seq_len: tokens per sequence; None: 512, or fewer where the model was trained on fewer
    - tokens: how many tokens of the text are read
    - sinks: first tokens that are never evicted; None: 4 in `sinks` and `random`, else none
    - recent: the share of the budget that goes to the last tokens
    - seed: of the policy `random`
    - tokenizer: a folder with one, for a file of text; None: that of the model's folder or its parent
    - step: which checkpoint, where the folder has several
    - device: where a model of a folder or hub runs; one that is loaded stays where it is
    - out: a folder to keep every loss in as soon as it is known, so that a later call goes on or adds to it; needs a
      model of a folder or hub, and policies with names alone. None: nothing is kept
    - fresh: measure again what `out` already has
    - progress: hears how far it is
    - notify: hears sentences as they become known: what is read, warnings, notes, policies that are left out

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> shape = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    >>> ids = torch.arange(64) % 9
    >>> costs = evaluate(GPT2LMHeadModel(shape), ids, policies=["window", "h2o"], budgets=[0.5, 2])
    >>> costs.sequences, costs.seq_len, {name: [cost.rule.budget for cost in found] for name, found in costs.of.items()}
    (8, 8, {'window': [4, 2], 'h2o': [4, 2]})
    """
    options: dict[str, Any] = {"sinks": sinks, "recent": recent, "seed": seed}
    for one in policies:
        rule(one, 1.0, 2, **options)
    must_be_distinct(policies)
    if all(one == "full" for one in policies):
        names = ", ".join(POLICIES[1:])
        raise BadInput(f"policies must name at least one of {names}: full is measured anyway", argument="policies")
    if out is not None and (own := [name_of(one) for one in policies if not isinstance(one, str)]):
        raise BadInput(f"out keeps losses by the name of a policy, and {own[0]} is a function, which can change")
    place, config = _open(model, step, out, device)
    ids = _token_ids(place, config, text, tokenizer, seq_len, tokens)
    for one, each in product(policies, budgets):
        rule(one, each, ids.shape[1], **options)
    name = type(model).__name__ if place is None else place.name
    notify(f"{name}: {counted(len(ids), 'sequence')} of {ids.shape[1]} tokens")
    network = model if isinstance(model, nn.Module) else _load(place, device)
    with _strangers_break(model, policies):
        left_out = _left_out(network, policies, notify)
    known = beyond_training(config, ids.shape[1])
    for kind, sentence in (("warning", known), ("note", unknown_training(config, ids.shape[1]))):
        if sentence:
            notify(f"{kind}: {sentence}")
    asked = {"model": str(model), "step": step, "device": device, "ids": ids, "options": options}
    path, run = (None, None) if out is None or place is None else _open_run(Path(out), place, asked, fresh=fresh)
    with nullcontext() if run is None else run:
        possible = [one for one in policies if name_of(one) not in left_out]
        with _strangers_break(model, policies):
            costs = measure(network, ids, possible, budgets, run, progress=progress, **options)
    for warning in (each for each in costs.warnings if each != known):
        notify(f"warning: {warning}")
    return replace(costs, left_out=left_out, run=path, name=name)


def _open(model: Any, step: str | None, out: str | Path | None, device: str) -> tuple[Place | None, Any]:
    if isinstance(model, nn.Module):
        must_be_cached(model)
        if out is not None:
            raise BadInput("out keeps losses by the files of a model: give its folder, or leave out away")
        return None, model.config
    if out is not None:
        refuse_files(Path(out))
    with as_bad_input():
        missing = lacking(device)
    if missing:
        raise BadInput(missing)
    from joma.scan import open_series
    from joma.scan.model.running import config_of

    series = open_series(model, downloads=Path(tempfile.gettempdir() if out is None else out)).select(step)
    if len(series.places) > 1:
        steps = ", ".join([*map(str, series.steps[:4]), *["..."] * (len(series.steps) > 4)])
        raise BadInput(f"{model} has {len(series.places)} checkpoints ({steps}); name one", argument="step")
    (place,) = series.places
    config = config_of(place)
    if why := cannot_be_cut(config):
        raise BadInput(f"{place.name}: {why}")
    return place, config


def _token_ids(place: Place | None, config: Any, text: Any, tokenizer: Any, seq_len: int | None, most: int) -> Tensor:
    """(sequences, seq_len)."""
    from joma.scan.model.text import tokens_of

    asked = None if seq_len is None else must_take(config, seq_len, least=SHORTEST)
    if isinstance(text, (str, Path)):
        if place is None and tokenizer is None and Path(text).suffix != ".npy":
            raise BadInput("a loaded model brings no tokenizer: name one, or give the text's token ids")
        folder = None if tokenizer is None else Path(tokenizer)
        ids = tokens_of(place, config, Path(text), folder, seq_len=asked, most=most)  # type: ignore[arg-type]
    else:
        ids = torch.as_tensor(text)
        asked = ids.shape[-1] if asked is None and ids.ndim == 2 else asked
        ids = ids.flatten()
    length = min(default_seq_len(config), len(ids)) if asked is None else asked
    if most < length:
        what = f"tokens {most} is too short: one sequence has {length} tokens, and there are {min(most, len(ids))}"
        raise BadInput(what, argument="tokens")
    if len(ids) < length:
        raise BadInput(f"text {text} is too short: one sequence has {length} tokens, and there are {len(ids)}")
    count = min(len(ids), most) // length
    return ids[: count * length].view(count, length)


def _load(place: Any, device: str) -> nn.Module:
    from joma.scan.model.loading import loaded_model
    from joma.scan.model.running import must_be_finite

    with place.folder() as folder:
        model: nn.Module = loaded_model(folder, torch.device(device), with_head=True)
    must_be_finite(model)
    return model.to(device)


def _strangers_break(model: Any, policies: Sequence[str | Policy]) -> AbstractContextManager[None]:
    """A folder may hold anything, and a config say anything of it; what a user's own code raises is the user's."""
    from joma.scan.model.running import strangers_break

    own = isinstance(model, nn.Module) or any(not isinstance(one, str) for one in policies)
    return nullcontext() if own else strangers_break()


def _left_out(model: nn.Module, policies: Sequence[str | Policy], notify: Callable[[str], object]) -> dict[str, str]:
    """Which policies the model cannot have, with the reason; and a note where positions stay what they are."""
    if "sinks" not in policies:
        return {}
    try:
        if not any(rotations(model).values()):
            notify("note: sinks: this model has no rotary positions, so each key keeps its position in the text")
    except CacheError as error:
        if "counted inside" not in str(error):
            raise
        notify(f"left out: sinks: {error}")
        return {"sinks": str(error)}
    return {}


def _open_run(out: Path, place: Place, asked: dict[str, Any], *, fresh: bool) -> tuple[Path, Run]:
    """One run for each model, text and setting: more policies and more budgets are added to it."""
    tokens = hashlib.sha256(asked["ids"].cpu().numpy().tobytes()).hexdigest()
    config = {
        "model": asked["model"], "step": asked["step"], "files": place.identity(), "tokens": tokens,
        "sequences": list(asked["ids"].shape), **asked["options"], "device": asked["device"].partition(":")[0],
    }  # fmt: skip
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(asked["model"]).resolve().name)[:60]
    path = out / "runs" / f"cache-{name}-{hashlib.sha256(json.dumps(config).encode()).hexdigest()[:10]}.sqlite"
    usable_folder(path.parent)
    if fresh:
        Run.delete(path)
    if not path.exists():
        return path, Run.create(path, study="cache", config=config, version=VERSION)
    run = Run.open(path, write=True)
    if run.version != VERSION:
        run.close()
        raise BadInput(f"{path} was measured by another version of joma; measure it afresh", argument="fresh")
    return path, run
