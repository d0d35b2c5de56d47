"""Whether a model can be run for a measure, said by its config.json alone, and what runs it."""

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor

from joma.host.errors import BadInput
from joma.measure.registry import KEPT
from joma.measure.spread import Spread
from joma.scan.errors import CheckpointError, Unmeasurable
from joma.scan.formats.tensor_file import FLOATS, check_finite
from joma.scan.model.loading import loaded_config, loaded_model
from joma.scan.sources.series import Place

Between = Callable[[str], None]
"""Called between two pieces of work with how far it is; it may raise, to stop the work there."""
one_model = threading.Lock()  # a model fills the device, and a probe switches attention for the whole process


def config_of(place: Place) -> Any:
    """The config of a place as transformers reads it; nothing else of the checkpoint is read or downloaded."""
    stored: dict[str, Any] | None = place.config()
    if stored is None:
        raise CheckpointError(f"{place.name} has no config.json, so its model cannot be run")
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(stored), encoding="utf-8")
        try:
            return loaded_config(Path(folder), f"the config of {place.name}")
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(folder, place.name), file="config.json") from None


def must_attend(config: Any, name: str) -> None:
    """Refuse a model whose attention nobody could measure on a text. name: what messages call the checkpoint."""
    kind = config.model_type
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise CheckpointError(f"attention is measured on a text, and {name} ({kind}) is not a language model")
    longest = config.to_dict().get("max_position_embeddings")  # XLNet has no limit, and says -1 where it is asked
    if isinstance(longest, int) and longest < 1:
        raise CheckpointError(f"the config of {name} says max_position_embeddings = {longest}; it must be at least 1")
    from joma.probes import can_probe

    if why := can_probe(config):
        raise CheckpointError(f"{name}: {why}")


def must_show_queries(config: Any, name: str) -> None:
    """Refuse a model whose logits could not be split by its mean query."""
    must_attend(config, name)
    from joma.probes import can_probe

    if why := can_probe(config, spread=True):
        raise CheckpointError(f"{name}: {why}")


def statistics(
    folder: Path, tokens: Tensor, device: torch.device, between: Between, wanted: Collection[str], *,
    seq_len: int | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The wanted statistics of the model in a folder, each (layers, heads), from one reading of its tokens.

    wanted: "entropy" (in nats), and fields of `joma.probes.AttentionSparsity` and of `joma.measure.spread.Spread`.
    NaN stands for heads that a layer does not have. seq_len: tokens per window; None: as
    `joma.probes.attention_entropy` chooses.
    """
    from joma import probes

    with one_model:
        between("about to load the model")
        model = loaded_model(folder, device)
        must_be_finite(model)
        _watch(model, len(tokens), between)
        sparse, spread = (not set(wanted).isdisjoint(kind._fields) for kind in (probes.AttentionSparsity, Spread))
        with strangers_break():
            probe = probes.probe_text(
                model, tokens, sparsity=KEPT if sparse else None, spread=spread, context=seq_len, device=device
            )
    spreads = probe.mean_spread()._asdict() if spread else {}
    return {name: spreads[name] if name in spreads else probe.mean(name) for name in wanted}


@contextmanager
def strangers_break() -> Iterator[None]:
    """A model that cannot be probed, or that breaks in a library's code, is told in a sentence.

    A config may say anything of its weights: bitsandbytes meets such a lie with an assertion. What breaks in joma's own
    code, want of memory, and what `between` raises to stop the work, is let through.
    """
    try:
        yield
    except (BadInput, CheckpointError, MemoryError, torch.OutOfMemoryError):
        raise
    except ValueError as error:
        raise Unmeasurable(str(error)) from None
    except Exception as error:
        if _broke_in_joma(error):
            raise
        why = " ".join(f"{type(error).__name__} {error}".split())[:160]
        raise Unmeasurable(
            f"the model breaks as it runs: {why}; its config.json may not describe its weights"
        ) from None


def _broke_in_joma(error: Exception) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or str(frames[-1].f_globals.get("__name__", "")).partition(".")[0] == "joma":
        return True
    return any(frame.f_code.co_qualname == f"{_watch.__name__}.<locals>.before" for frame in frames)


def must_be_finite(model: Any) -> None:
    """Refuse weights that are NaN or infinite."""
    for name, w in model.named_parameters():
        if w.dtype in FLOATS:
            check_finite(w.detach(), name, None)


def _watch(model: Any, total: int, between: Between) -> None:
    """Call `between` as the model runs, and refuse what is not finite: a mean would leave out queries that are NaN."""
    done = 0

    def before(*_: Any) -> None:
        between(f"{done:,} of {total:,} tokens")

    def after(_: Any, __: Any, inputs: dict[str, Tensor], output: Any) -> None:
        nonlocal done
        done += inputs["input_ids"].numel()
        state = getattr(output, "last_hidden_state", None)
        if state is not None and not state.isfinite().all():
            raise Unmeasurable(f"the model computes NaN or infinity on the text in {state.dtype}")

    for module in model.modules():  # of every layer, because a batch of a large model takes a minute on a CPU
        module.register_forward_pre_hook(before)
    model.base_model.register_forward_hook(after, with_kwargs=True)
