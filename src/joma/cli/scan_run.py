"""Which run a scan is recorded in."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from joma.host.errors import BadInput

if TYPE_CHECKING:
    from joma.runs import Run
    from joma.scan import Plan, Series


def run_path(options: argparse.Namespace, series: Series, patterns: Mapping[str, str]) -> Path:
    """One run for each source, set of patterns, root, base, text and seq_len; more steps and measures are added."""
    text = None if options.text is None else hashlib.sha256(options.text.read_bytes()).hexdigest()
    identity = [series.source, sorted(patterns.items()), text]
    if options.root or options.tokenizer:
        identity += [options.root, str(options.tokenizer and options.tokenizer.resolve())]
    if options.base:
        identity += ["base", options.base]
    if options.seq_len:
        identity += ["seq_len", options.seq_len]
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(series.source).name)[:60]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:10]
    return Path(options.out / "runs" / f"scan-{name}-{digest}.sqlite")


def opened_run(path: Path, settled: Plan, *, fresh: bool) -> Run:
    """The run to add to. It is never finished: a training run that goes on brings further steps."""
    from joma.runs import Run, plain_config
    from joma.scan.sweep import VERSION

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
    if version != VERSION:
        raise BadInput(
            f"{path} was measured by version {version} of joma scan, and this is version {VERSION}: joma report and "
            "joma export still read it, but nothing can be added; use --fresh to start over"
        )
    raise BadInput(f"{path} was measured from other tensors; use --fresh to start over")
