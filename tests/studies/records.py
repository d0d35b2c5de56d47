"""What the tests of several studies share: a run, what is found on it, and copies of it with their series spoiled."""

from dataclasses import replace

from pins import pin

from joma.claims.execute import check_config, judge, plain_config
from joma.runs import Run, RunError

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


def changed(run, path, change):
    """A copy of the run in which every entry of every series went through change(name, step, value)."""
    copy, steps = Run.create(path, study=run.study, config=run.config, version=run.version), {}
    for name in run.names():
        for step, value in entries(run, name):
            steps.setdefault(step, {})[name] = change(name, step, value)
    for step, values in steps.items():  # a step at a time: a transaction for every entry would take most of the time
        copy.record(step, values)
    return copy


def entries(run, name):
    """(step, value) of a series: at once where all are of one shape, which takes a tenth of the time."""
    steps = run.steps(name).tolist()
    try:
        together = run.array(name)
        return [(step, together[at, ...]) for at, step in enumerate(steps)]
    except RunError:  # of several shapes
        return [(step, run.at(name, step)) for step in steps]


def altered(run, path, name, change):
    """A copy of the run with one of its series changed: a judge that cannot be turned by it judges nothing."""
    return changed(run, path, lambda series, step, value: change(value) if series == name else value)
