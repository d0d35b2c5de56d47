"""What the tests of several studies share: a run, what is found on it, and copies of it with their series spoiled."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from given import nothing_left_to_defaults
from pins import pin

from joma.claims.execute import check_config, judge, plain_config
from joma.runs import Run

HOLDS = {"holds", "holds as corrected"}


def carried_out(study, config, path, *, pinned=True):
    """The study's run with `config`, still open. pinned: whether its numbers are compared with those that are kept."""
    check_config(config)
    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    shares = [0.0]

    def progress(share, doing):
        assert shares[-1] <= share <= 1, f"{study.name} was at {shares[-1]}, and is at {share} ({doing})"
        shares.append(share)

    with nothing_left_to_defaults():
        study.run(config, run, progress)
    if pinned:
        pin(study, config, run)
    return run


class verdicts(Mapping):
    """Of a run, by the name of the claim. A claim is judged when it is asked for: most tests ask for one of many."""

    def __init__(self, study, run):
        self.study, self.run, self.known = study, run, {}

    def __getitem__(self, name):
        if name not in self.known:
            claims = {claim.name: claim for claim in self.study.claims}
            self.known[name] = found(self.study, self.run, claims[name]).verdict
        return self.known[name]

    def __iter__(self):
        if len(self.known) < len(self):
            self.known = {finding.claim.name: finding.verdict for finding in judge(self.study, self.run)}
        return iter(self.known)

    def __len__(self):
        return len(self.study.claims)

    def __repr__(self):
        return repr(dict(self))


def found(study, run, claim):
    claim = next(one for one in study.claims if claim in (one, one.name))
    (finding,) = judge(replace(study, claims={claim: study.claims[claim]}), run)
    return finding


READ = {"study", "config", "version", "seed", "versions", "machine", "created", "status", "names", "steps", "dims",
        "last_step", "remembering"}  # fmt: skip
"""What a changed run has of the run that it is made of."""


class changed:
    """The run as judges and figures read it, every entry of every series gone through change(name, step, value).

    Nothing is written: to copy a run takes longer than to judge it.
    """

    def __init__(self, run, change):
        self.run, self.path, self.change, self.known = run, Path(), change, {}

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
            for at, step in enumerate(steps):
                if (name, step) not in self.known:
                    self.known[name, step] = np.array(self.change(name, step, together[at, ...]))
            self.known[name] = np.stack([self.known[name, step] for step in steps])
        return self.known[name].copy()

    def at(self, name, step):
        if (name, step) not in self.known:  # once, as some changes are drawn
            self.known[name, step] = np.array(self.change(name, int(step), self.run.at(name, step)))
        return self.known[name, step].copy()

    def value(self, name):
        self.run.value(name)  # refused where there are several
        return self.array(name)[0, ...]


def copied(run, path, change=lambda name, step, value: value):
    copy, steps = Run.create(path, study=run.study, config=run.config, version=run.version), {}
    for name in run.names():
        for step in map(int, run.steps(name)):
            steps.setdefault(step, {})[name] = change(name, step, run.at(name, step))
    for step, values in steps.items():  # a step at a time: a transaction for every entry would take most of the time
        copy.record(step, values)
    return copy


def altered(run, name, change):
    return changed(run, lambda series, step, value: change(value) if series == name else value)
