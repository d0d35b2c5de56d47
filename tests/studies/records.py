"""What the tests of several studies share: a run, what is found on it, and copies of it with their series spoiled."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from pins import pin

from joma.claims.execute import check_config, judge, plain_config
from joma.runs import Run

HOLDS = {"holds", "holds as corrected"}


def carried_out(study, config, path):
    """The study's run with `config`, still open."""
    check_config(config)
    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    shares = [0.0]

    def progress(share, doing):
        assert shares[-1] <= share <= 1, f"{study.name} was at {shares[-1]}, and is at {share} ({doing})"
        shares.append(share)

    study.run(config, run, progress)
    pin(study, config, run)
    return run


def verdicts(study, run):
    return {finding.claim.name: finding.verdict for finding in judge(study, run)}


def found(study, run, claim):
    (finding,) = judge(replace(study, claims={claim: study.claims[claim]}), run)
    return finding


READ = {"study", "config", "version", "seed", "versions", "machine", "created", "status", "names", "steps", "dims",
        "last_step", "remembering"}  # fmt: skip
"""What a changed run has of the run that it is made of."""


class changed:
    """The run as judges and figures read it, every entry of every series gone through change(name, step, value).

    Nothing is written: to copy a run takes longer than to judge it. path: where the copy would be.
    """

    def __init__(self, run, path, change):
        self.run, self.path, self.change, self.known = run, Path(path), change, {}

    def __getattr__(self, name):
        if name not in READ:
            raise AttributeError(f"a changed run has no {name}: it is read, and never written")
        return getattr(self.run, name)

    def __contains__(self, name):
        return name in self.run

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def close(self):
        pass

    def array(self, name):
        if name not in self.known:
            together, steps = self.run.array(name), self.run.steps(name).tolist()
            changes = [self.change(name, step, together[at, ...]) for at, step in enumerate(steps)]
            self.known[name] = np.stack([np.asarray(value) for value in changes])
        return self.known[name].copy()

    def at(self, name, step):
        return np.array(self.change(name, int(step), self.run.at(name, step)))

    def value(self, name):
        self.run.value(name)  # refused where there are several
        return self.array(name)[0, ...]


def altered(run, path, name, change):
    """A copy of the run with one of its series changed: a judge that cannot be turned by it judges nothing."""
    return changed(run, path, lambda series, step, value: change(value) if series == name else value)
