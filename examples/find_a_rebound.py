"""Follow attention entropy in theory and test whether it recovers: python examples/find_a_rebound.py"""

import argparse

import torch

from joma.measure.rebound import rebound
from joma.theory import salience


def main() -> None:
    """Print fall and recovery."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=float, nargs="+", default=[1.0, 2.0, 3.0], help="where components are going")
    targets = torch.tensor(parser.parse_args().targets, dtype=torch.float64)
    curve = salience.entropy_curve(targets, torch.linspace(0, 5, 101))
    found = rebound(curve, steps=range(101))
    print(f"entropy falls by {found.drop:.2f} nats (chance {found.drop_margin:.3f}): {bool(found.drops)}")
    print(f"and recovers by {found.rebound:.2f} nats (chance {found.rebound_margin:.3f}): {bool(found.rebounds)}")


if __name__ == "__main__":
    main()
