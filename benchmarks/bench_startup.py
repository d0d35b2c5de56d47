"""How long a user waits before anything happens: `joma --help`, and what `import joma` adds to `import torch`.

    python benchmarks/bench_startup.py [--record]

The floor is `python -c pass` for the first and `import torch` alone for the second, measured in the same run.
"""

import statistics
import subprocess
import sys
import time

from _record import record

ROUNDS = 15
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "joma --help": ["-m", "joma.cli.main", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, joma": ["-c", "import torch, joma"],
}


def seconds(arguments):
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    times = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):  # interleaved, so that a busy moment hits all of them
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    median = {name: statistics.median(values) for name, values in times.items()}
    paired = [b - a for a, b in zip(times["import torch"], times["import torch, joma"], strict=True)]
    rows = [
        {"what": name, "median_s": round(value, 4), "best_s": round(min(times[name]), 4)}
        for name, value in median.items()
    ]
    rows.append(
        {"what": "import joma on top of torch, paired difference", "median_s": round(statistics.median(paired), 4)}
    )
    for row in rows:
        print(f"{row['what']:<50} {row['median_s']:8.4f} s")
    record("startup", rows)


if __name__ == "__main__":
    main()
