"""What the tests of several studies share: a run, the verdicts read off it, and a copy with one series spoiled."""

from joma.runs import Run
from joma.studies.contract import silent
from joma.studies.execute import judge, plain_config


def carried_out(study, config, path):
    """The study's run with `config`, still open."""
    run = Run.create(path, study=study.name, config=plain_config(config), version=study.version)
    study.run(config, run, silent)
    return run


def verdicts(study, run):
    return {finding.claim.name: finding.verdict for finding in judge(study, run)}


def altered(run, path, name, change):
    """A copy of the run with one of its series changed: a judge that cannot be turned by it judges nothing."""
    copy = Run.create(path, study=run.study, config=run.config, version=run.version)
    for series in run.names():
        for step in run.steps(series):
            value = run.at(series, int(step))
            copy.append(series, int(step), change(value) if series == name else value)
    return copy
