"""The real Ray on this machine, in a process of its own with an end to our patience; test_ray_seam.py is quicker."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from patience import PATIENCE, alive, until

pytest.importorskip("ray")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What ray_session.py saw, and what it printed. Its working directory holds a numpy.py of a stranger."""
    place = tmp_path_factory.mktemp("ray")
    (place / "numpy.py").write_text("raise SystemExit('a stranger was imported')")
    sockets = tempfile.mkdtemp(prefix="jr-", dir="/tmp")  # a short name: paths of sockets have few letters
    paths = [str(HERE), str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "TMPDIR": sockets, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"JOMA_LIMITS": "LAYERS=77", "PYTHONSAFEPATH": "1"}
    for name in ("RAY_ADDRESS", "OMP_NUM_THREADS"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "ray_session.py"), str(place)],
            cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads((place / "seen.json").read_text())
        yield {**found, "printed": done.stdout + done.stderr, "place": str(place), "left": os.listdir(sockets)}
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


@pytest.mark.long
def test_every_task_is_done(seen):
    assert seen["double"]["ends"] == {str(n): {"done": 2 * n} for n in range(6)}


@pytest.mark.long
def test_an_error_of_the_task_is_named_and_the_rest_goes_on(seen):
    assert seen["raise"]["ends"] == {"bad": {"lost": "ValueError: no such thing"}, "good": {"done": "well"}}
    assert "again" not in str(seen["raise"]["words"])


@pytest.mark.long
def test_a_task_whose_process_dies_is_begun_again(seen):
    again = [words for words in seen["dies twice"]["words"]["dies"] if "again" in words]
    assert again == [f"its process died; begun again ({n} of 3)" for n in (1, 2)]
    assert seen["dies twice"]["ends"] == {"dies": {"done": 3}}


@pytest.mark.long
def test_a_task_that_says_nothing_is_given_up(seen):
    assert seen["hangs"]["ends"] == {"bad": {"lost": "it said nothing for 1 s and was stopped"}}
    assert seen["hangs"]["words"]["bad"] == ["begun"]


@pytest.mark.long
def test_what_no_machine_has_room_for_is_refused(seen):
    ends = seen["large"]["ends"]
    assert ends["gpu"]["lost"] == "it needs 1 core and 99 GPUs, and no machine of the cluster has that"
    assert ends["memory"]["lost"].endswith("GB of memory, and no machine of the cluster has that")
    assert ends["small"] == {"done": 2}


@pytest.mark.long
def test_a_task_finds_the_threads_and_limits_of_the_driver_and_nothing_of_its_folder(seen):
    around = seen["around"]["ends"]["a"]["done"]
    assert (around["threads"], around["limits"]) == ("2", "LAYERS=77")
    assert seen["place"] not in around["path"]
    assert not {"", "."} & set(around["path"])
    assert seen["working directory"]


@pytest.mark.long
def test_a_cluster_of_our_own_listens_to_this_machine_alone(seen):
    """127.0.0.1 as the kernel writes it, also as an address of IPv6."""
    assert seen["listening"]
    assert set(seen["listening"]) <= {"0100007F", "0000000000000000FFFF00000100007F"}


@pytest.mark.long
def test_what_is_left_early_may_write_a_checkpoint_and_the_cluster_of_others_stays(seen):
    assert seen["saved"]
    assert seen["still there"]


@pytest.mark.long
def test_nothing_is_printed_and_nothing_is_left_behind(seen):
    assert seen["printed"] == ""
    assert seen["left"] == []
    until(lambda: not any(map(alive, seen["processes"])))
