"""One session with the real Ray, in a process of its own, for tests/scale/test_ray.py: what it saw goes to a file.

One cluster for everything, since Ray takes seconds to start. Four tasks at a time, though there may be fewer cores.
"""

import json
import os
import sys
from pathlib import Path

from joma.scale import ray as ours
from joma.scale.ray import RayCluster
from joma.scale.task import Done, Going, Task

HERE = "scale_tasks"


def told(events):
    words, ends = {}, {}
    for event in events:
        if isinstance(event, Going):
            words.setdefault(event.task.name, []).append(event.doing)
        else:
            ends[event.task.name] = {"done": event.value} if isinstance(event, Done) else {"lost": event.reason}
    return {"words": words, "ends": ends}


def listening():
    """Addresses on which processes of this cluster listen: those of sockets that no other namespace or process has."""
    mine = set()
    for pid in family():
        for number in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                mine.add(os.readlink(number))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(fields[1].rpartition(":")[0])
    return sorted(found)


def family():
    """This process and all that come from it; workers lead groups of their own."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # it ended meanwhile
                continue
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def main(folder):
    log = lambda name: str(Path(folder, name))
    gone = [Task(name, {"name": name, "how": how}) for name, how in (("bad", "raise"), ("good", ""))]
    seen = {}
    before = os.getcwd()
    with ours._connected(ours.loaded(), RayCluster(jobs=4)):
        cluster = RayCluster(jobs=4)
        seen["double"] = told(cluster.events(f"{HERE}:double", [Task(str(n), {"n": n}) for n in range(6)]))
        seen["raise"] = told(cluster.events(f"{HERE}:go_wrong", gone))
        seen["dies twice"] = told(
            cluster.events(f"{HERE}:die_at_first", [Task("dies", {"log": log("twice"), "deaths": 2})])
        )
        hangs = [Task("bad", {"name": "bad", "how": "hang", "file": log("hangs")})]
        seen["hangs"] = told(RayCluster(jobs=4, silence=1.0).events(f"{HERE}:go_wrong", hangs))
        large = [
            Task("gpu", {"n": 1}, gpus=99),
            Task("memory", {"n": 1}, memory=10**15),
            Task("small", {"n": 1}, memory=10**6),
        ]
        seen["large"] = told(cluster.events(f"{HERE}:double", large))
        seen["around"] = told(RayCluster(jobs=1, threads=2).events(f"{HERE}:surroundings", [Task("a", {})]))
        seen["listening"] = listening()
        saving = cluster.events(f"{HERE}:save_at_the_end", [Task("save", {"file": log("saved")})])
        next(saving)
        saving.close()
        seen["saved"] = Path(log("saved")).exists()
        seen["still there"] = ours.loaded().is_initialized()
        seen["processes"] = family()[1:]
    seen["working directory"] = os.getcwd() == before
    Path(folder, "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
