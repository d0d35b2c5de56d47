"""What the tests of several studies share: reading verdicts off a run, and a run with one series spoiled."""

from joma.runs import Run
from joma.studies.execute import judge


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
