"""`--on`: where work is carried out. Commands with many tasks have it."""

import argparse


def add_on(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option. what: as in "checkpoints are measured"."""
    parser.add_argument(
        "--on", metavar="PLACE",
        help=f"where {what}: local (processes of this machine, one per GPU), ray (the cluster of RAY_ADDRESS, else one "
        "on this machine), ray:ADDRESS or ray://HOST:PORT (default: here)",
    )  # fmt: skip
