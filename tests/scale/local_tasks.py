"""Tasks for the processes of `joma.scale.local`, and how they ended."""

from joma.scale.task import Going, Task

HERE = "scale_tasks"


def ended(events):
    return {event.task.name: event for event in events if not isinstance(event, Going)}


def tasks(*names, **arguments):
    return [Task(name, {"name": name, **arguments}) for name in names]
