"""`joma.scan.scan`: a series of checkpoints, found, measured, judged and recorded in one call."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from joma.host.devices import must_be_a_device
from joma.host.errors import BadInput, asked_for
from joma.host.words import counted
from joma.runs import Run, plain_config
from joma.scale.choosing import executor_of
from joma.scale.parts import belonging_together, find_parts
from joma.scale.shards import read_shard
from joma.scale.task import Executor
from joma.scan.result.curves import Scan
from joma.scan.sources.places import on_base, open_series
from joma.scan.sources.series import DATE, TOKENS, Series
from joma.scan.sweep.elsewhere import Elsewhere
from joma.scan.sweep.parts import KIND, measure_part, merge_scans, part_of, share_in_words
from joma.scan.sweep.plan import Plan, plan
from joma.scan.sweep.record import remember
from joma.scan.sweep.sweeping import VERSION, sweep

Progress = Callable[[str], None]
_FUNCTION = "joma.scan.task:measure_checkpoint"  # by name: it imports this file
BUDGET = 20.0  # gigabytes of disk for downloads


def scan(
    source: str | Path,
    *,
    steps: str | Sequence[int] | None = None,
    axis: str | None = None,
    measures: str | Iterable[str] = ("stable_rank",),
    groups: str | Iterable[str] | None = None,
    patterns: Mapping[str, str] | None = None,
    root: str | None = None,
    base: str | Path | None = None,
    text: str | Path | None = None,
    tokenizer: str | Path | None = None,
    seq_len: int | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    on: str | Executor | None = None,
    out: str | Path | None = None,
    budget: float = BUDGET,
    fresh: bool = False,
    keep_suspicious: bool = False,
    progress: Progress | None = None,
    shard: str | None = None,
) -> Scan:
    """Measure every checkpoint of a training run, as the command `joma scan` does.

    - source: a local file or folder (one checkpoint, or one per step), the address of one (s3://, gs://, az://, and
      https:// of a file; needs the extra `cloud`), or a model on the Hugging Face hub.
    - steps: which steps, as numbers or as text ("0,1,1000:3000:1000"); None: all.
    - axis: what orders the checkpoints: "tokens" or "date" as their names say; None: steps, or epochs where no step is
      known.
    - measures: names from `joma.measure.registry.MEASURES`, also as one text with commas.
    - groups: groups of matrices to keep to, such as "mlp"; None: all that are found.
    - patterns: further groups by name, each a regular expression that fits full tensor names.
    - root: which model, where a checkpoint holds several, such as "ema".
    - base: the folder of the model that adapters are merged with; "none": adapters are measured alone.
    - text: a file of text for measures that run the model, or its token ids as .npy.
    - tokenizer: a folder with one; None: that of the checkpoint, or of the folder that it lies in.
    - seq_len: tokens per window of the text. None: 512, or fewer where the text is shorter or the model was trained
      on fewer. More than the positions of the model can take is refused; more than training had is warned of.
    - device: where it is measured: "cpu", "cuda" or "cuda:N".
    - jobs: checkpoints that are read at a time; None: one, or with `on` as many as there is room for.
    - on: where checkpoints are measured, each in a process of one thread: "local" for processes of this machine, "ray"
      or "ray://HOST:PORT" for a cluster, as `joma.scale.choosing.executor_of` takes it, or an executor; None: in this
      process.
    - out: folder for the run that records all of it, and for downloads. A later call with the same folder measures
      only what is missing. None: nothing is kept.
    - budget: gigabytes of disk for files elsewhere that cannot be read in part.
    - fresh: measure again what is already recorded.
    - keep_suspicious: keep steps whose weights seem to be those of another step, and note them.
    - progress: called with a line for every step and for what is known before. A line in parentheses is a sign of
      life from a step that takes long.
    - shard: "2/4" measures the second of four shares of the checkpoints, into a folder `shard-2-of-4` of `out`. Steps
      are not compared with each other before `joma.scan.merge_shards` makes one scan of all shares.

    Returns the curves over the usable steps, what was left out and why. `violations` asks it for thresholds.

    Raises `CheckpointError` where nothing can be measured, `NoneUsable` where no checkpoint can be opened, `BadInput`
    where an argument cannot be used.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10):
    ...         save_file({"h.0.mlp.c_fc.weight": torch.eye(4) + step}, f"{folder}/step{step}.safetensors")
    ...     found = scan(folder, measures="stable_rank,spectral_norm")
    >>> found.steps, list(found.curves), found.curves["stable_rank/mlp"].values.round(3).tolist()
    ([0, 10], ['stable_rank/mlp', 'spectral_norm/mlp'], [[4.0], [1.002]])
    """
    if jobs is not None and jobs < 1:
        raise BadInput(f"jobs must be at least 1, got {jobs}", argument="jobs")
    executor = executor_of(on, jobs=jobs) if isinstance(on, str) else on
    if executor is not None:
        _must_leave_the_choice(device)
    report: Progress = progress or (lambda line: None)
    text, tokenizer = (None if path is None else Path(path) for path in (text, tokenizer))
    measures, groups = _names(measures), None if groups is None else _names(groups)
    share = None if shard is None else read_shard(shard)
    if share is not None:
        if out is None:
            raise BadInput("a shard is kept in a folder, and none is given", argument="out")
        out = share.folder(Path(out))
    kept: AbstractContextManager[str | Path] = TemporaryDirectory() if out is None else nullcontext(out)
    with kept as folder:
        series = find_series(source, steps=steps, axis=axis, base=base, out=Path(folder), budget=budget)
        report(f"{series.source}: {counted(len(series.places), 'checkpoint')}")
        wish: dict[str, Any] = {
            "measures": measures, "patterns": patterns, "groups": groups, "root": root, "seq_len": seq_len,
        }  # fmt: skip
        # With an executor this process measures nothing, and needs no GPU: those that measure have one.
        here = device if executor is None or "allocation" in measures else "cpu"
        settled = plan(series, text=text, tokenizer=tokenizer, device=here, **wish)
        # What there is to say before the work, which may not be worth it. Groups that cover as many layers go together.
        alike: dict[tuple[int, int], list[str]] = {}
        for group, pair in settled.coverage.items():
            alike.setdefault(pair, []).append(group)
        covered = [f"{', '.join(names)}: {k} of {counted(n, 'layer')} covered" for (k, n), names in alike.items()]
        refused = [f"refused: {name}: {why}" for name, why in settled.refused.items()]
        for line in (*covered, *refused, *(f"warning: {warning}" for warning in settled.warnings)):
            report(line)
        identity = _identity(series, patterns or {}, root, base, text, tokenizer, seq_len)
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(series.source).name)[:60]
        path = Path(folder, "runs", f"scan-{name}-{identity}.sqlite")
        told: Progress = lambda line: report(line if line.startswith("[") else f"({line})")
        elsewhere, how = None, {"axis": axis, "base": base, "tokenizer": tokenizer}
        if executor is not None:
            more = {"source": series.source, "steps": series.steps, "budget": budget, "device": device, "text": text}
            asked = _as_sent({**wish, **how, **more, "out": folder})
            elsewhere = Elsewhere(executor, _FUNCTION, asked, gpus=int(device != "cpu"))
        part, before = None, None
        if share is not None:
            decides = {"source": series.source, **wish, **how, "patterns": patterns or {},
                       "text": None if text is None else _digest(text), "device": device.partition(":")[0],
                       "keep_suspicious": keep_suspicious}  # fmt: skip
            part = part_of(settled, share, Path(folder), plain_config(decides))
            report(share_in_words(part))
            before = part.begin()
        with _opened_run(path, settled, fresh=fresh) as run:
            working: dict[str, Any] = {"jobs": jobs or 1, "report": told, "elsewhere": elsewhere}
            if part is not None:
                found = measure_part(settled, run, part, None if fresh else before, **working)
            else:
                found = sweep(settled, run, keep_suspicious=keep_suspicious, **working)
                remember(run, found, series.steps)
    return found if out is None else replace(found, run=path)


def merge_shards(folders: Sequence[str | Path], out: str | Path, *, fresh: bool = False) -> Scan:
    """One scan from the folders of all its shards: the record and the curves that a scan without shards would have.

    - folders: one per shard, or a folder that holds those of all
    - out: the folder for the run that records all of it
    - fresh: replace a record that is there

    Raises `BadInput` where the folders are no shares of one scan: other versions, options or checkpoints, a shard that
    is missing, not finished, or there twice.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (0, 10):
    ...         save_file({"h.0.mlp.c_fc.weight": torch.eye(4) + step}, f"{folder}/step{step}.safetensors")
    ...     for shard in ("1/2", "2/2"):
    ...         _ = scan(folder, shard=shard, out=f"{folder}/parts")
    ...     found = merge_shards([f"{folder}/parts"], f"{folder}/out")
    >>> found.steps, found.curves["stable_rank/mlp"].values.round(3).tolist()
    ([0, 10], [[4.0], [1.002]])
    """
    parts = belonging_together(find_parts([Path(folder) for folder in folders]))
    if parts[0].kind != KIND:
        raise BadInput(f"{parts[0].folder} is a shard of joma {parts[0].kind}, and no scan")
    return merge_scans(parts, Path(out), fresh=fresh)


def find_series(
    source: str | Path, *, steps: str | Sequence[int] | None = None, axis: str | None = None,
    base: str | Path | None = None, out: Path, budget: float = BUDGET,
) -> Series:  # fmt: skip
    """The checkpoints that a scan would measure; the arguments are those of `scan`."""
    if not 0 < budget < 1e9:
        raise BadInput(f"budget must be a positive number of gigabytes, got {budget}", argument="budget")
    series = open_series(source, downloads=out, budget=budget * 1e9, axis=axis).select(steps)
    return series if base is None else on_base(series, base)


def _must_leave_the_choice(device: str) -> None:
    """Of several GPUs an executor gives every process its own, which is then its first."""
    with asked_for():
        must_be_a_device(device)
    if ":" in device:
        raise BadInput(f"device {device} names one GPU, and `on` chooses one itself; say cuda", argument="device")


def _as_sent(wish: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, for a process with another working directory: paths in full, plain values."""
    full = {name: os.path.abspath(wish[name]) for name in ("text", "tokenizer", "out") if wish[name] is not None}
    if wish["base"] is not None:
        full["base"] = "none" if str(wish["base"]) == "none" else os.path.abspath(wish["base"])
    patterns = None if wish["patterns"] is None else dict(wish["patterns"])
    return {**wish, **full, "patterns": patterns}


def _names(given: str | Iterable[str]) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)


def _identity(
    series: Series, patterns: Mapping[str, str], root: str | None, base: str | Path | None, text: Path | None,
    tokenizer: Path | None, seq_len: int | None,
) -> str:  # fmt: skip
    """One run for each source, set of patterns, root, base, text and seq_len; more steps and measures are added."""
    digest = None if text is None else _digest(text)
    identity: list[Any] = [series.source, sorted(patterns.items()), digest]
    identity += [root, str(tokenizer and os.path.realpath(tokenizer))] if root or tokenizer else []
    identity += ["base", str(base)] if base else []
    identity += ["axis", series.axis] if series.axis in (TOKENS, DATE) else []
    identity += ["seq_len", seq_len] if seq_len else []
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:10]


def _digest(text: Path) -> str:
    return hashlib.sha256(text.read_bytes()).hexdigest()


def _opened_run(path: Path, settled: Plan, *, fresh: bool) -> Run:
    """The run to add to. It is never finished: a training run that goes on brings further steps."""
    config = plain_config(settled.config())
    if fresh:
        Run.delete(path)
    if not path.exists():
        return Run.create(path, study="scan", config=config, version=VERSION)
    run = Run.open(path, write=True)
    if run.version == VERSION and run.config == config:
        return run
    version = run.version
    run.close()
    why = "was measured from other tensors"
    if version != VERSION:
        why = (
            f"was measured by version {version} of joma scan, and this is version {VERSION}: joma report and joma "
            "export still read it, but nothing can be added"
        )
    raise BadInput(f"{path} {why}; start over with a fresh run", argument="fresh")
