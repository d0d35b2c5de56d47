"""More than one process at a time: an executor takes tasks and gives events.

`task` has the tasks, the events and what an executor is; `local` works on this machine, `ray` on a cluster of Ray;
`choosing` makes an executor from a word like "local" or "ray://HOST:10001".
"""
