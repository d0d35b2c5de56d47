"""`joma.scan.scan`: a series of checkpoints, found, measured, judged and recorded in one call."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from joma.host.devices import must_be_a_device
from joma.host.errors import BadInput, as_bad_input
from joma.host.words import brief_repr, counted
from joma.runs import Run, plain_config
from joma.runs.merging import forget_steps
from joma.scale.choosing import executor_of
from joma.scale.parts import belonging_together, find_parts
from joma.scale.shards import read_shard
from joma.scale.task import Executor
from joma.scan.result.curves import Scan
from joma.scan.sources.places import Which, find_series
from joma.scan.sources.series import DATE, TOKENS, Series
from joma.scan.sweep.elsewhere import Elsewhere
from joma.scan.sweep.pairs import is_of
from joma.scan.sweep.parts import KIND, measure_part, merge_scans, part_of, share_in_words
from joma.scan.sweep.plan import Plan, What, plan
from joma.scan.sweep.reading import changes
from joma.scan.sweep.record import ABOUT, remember
from joma.scan.sweep.sweeping import VERSION, recorded_of, sweep

Progress = Callable[[str], None]


@brief_repr
@dataclass(frozen=True, kw_only=True)
class Work:
    """How a scan is carried out.

    - device: where it is measured: "cpu", "cuda" or "cuda:N".
    - jobs: checkpoints that are read at a time; None: one, or with `on` as many as fit.
    - on: where checkpoints are measured, each in a process of one thread: "local" for processes of this machine, "ray"
      or "ray://HOST:PORT" for a cluster, as `joma.scale.choosing.executor_of` takes it, or an executor; None: in this
      process.
    - shard: "2/4" measures the second of four shares of the checkpoints, into a folder `shard-2-of-4` of `out`. Steps
      are not compared with each other before `joma.scan.merge_shards` makes one scan of all shares.
    """

    device: str = "cpu"
    jobs: int | None = None
    on: str | Executor | None = None
    shard: str | None = None

    def executor(self) -> Executor | None:
        """What carries tasks out elsewhere; of several GPUs it gives every process its own, which is then its first."""
        if self.jobs is not None and self.jobs < 1:
            raise BadInput(f"jobs must be at least 1, got {self.jobs}", argument="jobs")
        executor = executor_of(self.on, jobs=self.jobs) if isinstance(self.on, str) else self.on
        if executor is not None:
            with as_bad_input():
                must_be_a_device(self.device)
            if ":" in self.device:
                what = f"device {self.device} names one GPU, and `on` chooses one itself; say cuda"
                raise BadInput(what, argument="device")
        return executor


def scan(
    source: str | Path, *, which: Which | None = None, what: What | None = None, work: Work | None = None,
    out: str | Path | None = None, fresh: bool = False, keep_suspicious: bool = False,
    progress: Progress | None = None, **options: Any,
) -> Scan:  # fmt: skip
    """Measure every checkpoint of a training run, as the command `joma scan` does.

    - source: a local file or folder (one checkpoint, or one per step), the address of one (s3://, gs://, az://, and
      https:// of a file; needs the extra `cloud`), or a model on the Hugging Face hub.
    - which: the checkpoints. what: the measures, and of which groups. work: where it is done, and how much at a time.
    - options: fields of `Which`, `What` and `Work`, given directly: `scan(source, steps="0:100", jobs=2)`.
    - out: folder for the run that records all of it, and for downloads. A later call with the same folder measures
      only what is missing. None: nothing is kept.
    - fresh: measure again what is already recorded.
    - keep_suspicious: keep steps whose weights seem to be those of another step, and note them.
    - progress: called with a line for every step and for what is known before. A line in parentheses is a sign of
      life from a step that takes long.

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
    which, what, work = (_with(one, options) for one in (which or Which(), what or What(), work or Work()))
    if options:
        raise TypeError(f"scan() got an unexpected keyword argument {next(iter(options))!r}")
    executor = work.executor()
    report: Progress = progress or (lambda line: None)
    share = None if work.shard is None else read_shard(work.shard)
    if share is not None:
        if out is None:
            raise BadInput("a shard is kept in a folder, and none is given", argument="out")
        out = share.folder(Path(out))
    kept: AbstractContextManager[str | Path] = TemporaryDirectory() if out is None else nullcontext(out)
    with kept as folder:
        series = find_series(source, which, Path(folder))
        report(f"{series.source}: {counted(len(series.places), 'checkpoint')}")
        # With an executor this process measures nothing, and needs no GPU: those that measure have one.
        here = work.device if executor is None or "allocation" in what.measures else "cpu"
        settled = plan(series, what, device=here)
        _report_before(settled, report)
        digest = None if what.text is None else hashlib.sha256(Path(what.text).read_bytes()).hexdigest()
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(series.source).name)[:60]
        path = Path(folder, "runs", f"scan-{name}-{_identity(series, which, what, digest)}.sqlite")
        elsewhere = None
        if executor is not None:
            elsewhere = Elsewhere(executor, _as_sent(series, which, what, work, folder), gpus=int(work.device != "cpu"))
        in_brackets: Progress = lambda line: report(line if line.startswith("[") else f"({line})")
        how: dict[str, Any] = {"jobs": work.jobs or 1, "elsewhere": elsewhere, "report": in_brackets}
        part, before = None, None
        if share is not None:
            decides = {**asdict(what), "source": series.source, "axis": which.axis, "base": which.base,
                       "patterns": what.patterns or {}, "roles": what.lines, "text": digest,
                       "device": work.device.partition(":")[0], "keep_suspicious": keep_suspicious}  # fmt: skip
            part = part_of(settled, share, Path(folder), plain_config(decides))
            report(share_in_words(part))
            before = part.begin()
        opened, again = _opened_run(path, settled, fresh=fresh)
        with opened as run:
            if part is not None:
                found = measure_part(settled, run, part, None if fresh else before, **how)
            else:
                found = sweep(settled, run, keep_suspicious=keep_suspicious, **how)
            found = replace(found, notes=(*found.notes, *again))
            if part is None:
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


def _with(group: Any, options: dict[str, Any]) -> Any:
    """A group of options with those of its fields that are given directly, which are taken out of `options`."""
    return replace(group, **{field.name: options.pop(field.name) for field in fields(group) if field.name in options})


def _report_before(settled: Plan, report: Progress) -> None:
    """What there is to say before the work, which may not be worth it. Groups that cover as many layers go together."""
    alike: dict[tuple[int, int], list[str]] = {}
    for group, pair in settled.coverage.items():
        alike.setdefault(pair, []).append(group)
    covered = [f"{', '.join(names)}: {k} of {counted(n, 'layer')} covered" for (k, n), names in alike.items()]
    refused = [f"refused: {name}: {why}" for name, why in settled.refused.items()]
    for line in (*covered, *refused, *(f"warning: {warning}" for warning in settled.warnings)):
        report(line)


def _as_sent(series: Series, which: Which, what: What, work: Work, out: str | Path) -> dict[str, Any]:
    """What `joma.scan.sweep.elsewhere` settles the same plan from, in a process with another working directory."""

    def full(path: Any) -> str | None:
        return None if path is None else "none" if str(path) == "none" else os.path.abspath(path)

    own = {"patterns": dict(what.patterns or {}), "roles": what.lines}
    return {
        "source": series.source,
        "out": os.path.abspath(out),
        "device": work.device,
        "which": {**asdict(which), "steps": series.steps, "base": full(which.base)},
        "what": {**asdict(what), **own, "text": full(what.text), "tokenizer": full(what.tokenizer)},
    }


def _identity(series: Series, which: Which, what: What, digest: str | None) -> str:
    """One run for each source, patterns, roles, root, base, text and seq_len; more steps and measures are added."""
    tokenizer, root = what.tokenizer, what.root
    identity: list[Any] = [series.source, sorted((what.patterns or {}).items()), digest]
    identity += [root, str(tokenizer and os.path.realpath(tokenizer))] if root or tokenizer else []
    identity += ["base", str(which.base)] if which.base else []
    identity += ["roles", sorted(what.lines.items())] if what.lines else []
    identity += ["axis", series.axis] if series.axis in (TOKENS, DATE) else []
    identity += ["seq_len", what.seq_len] if what.seq_len else []
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:10]


def _opened_run(path: Path, settled: Plan, *, fresh: bool) -> tuple[Run, tuple[str, ...]]:
    """The run to add to, and notes on checkpoints that were rewritten: what it held of them is gone.

    It is never finished: a training run that goes on brings further steps.
    """
    config = plain_config(settled.config())
    if fresh:
        Run.delete(path)
    if not path.exists():
        return Run.create(path, study="scan", config=config, version=VERSION), ()
    run = Run.open(path, write=True)
    if run.version == VERSION and run.config == config:
        if not (changed := changes(settled, recorded_of(settled, run))):
            return run, ()
        run.close()
        forget_steps(path, lambda name, step: name != ABOUT and is_of(name, step, changed))
        return Run.open(path, write=True), tuple(changed.values())
    version = run.version
    run.close()
    why = "was measured from other tensors"
    if version != VERSION:
        why = (
            f"was measured by version {version} of joma scan, and this is version {VERSION}: joma report and joma "
            "export still read it, but nothing can be added"
        )
    raise BadInput(f"{path} {why}; start over with a fresh run", argument="fresh")
