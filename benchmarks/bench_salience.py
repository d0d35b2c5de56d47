"""Equation 6 without time stepping, against an adaptive explicit solver.

    python benchmarks/bench_salience.py [--record]

16,384 components, mu = 3u + 1 (torch seed 0), float64, horizon 30; processor time, one thread each. Peer in the same
run: torchdiffeq's dopri5 at rtol 1e-6, atol 1e-9, which has to resolve exp(mu^2/2) all the way. Errors are against
scipy's Radau at rtol 1e-12 on 32 of the components. The floor is the time of the exponentials alone that the
quadratures take: as many, in arrays of the size of a chunk, by torch.exp.
"""

import time

import numpy as np
import torch
from _record import record
from scipy.integrate import quad, solve_ivp
from torchdiffeq import odeint

from joma.theory import _depth, salience

COMPONENTS, HORIZON, CHECKED = 16_384, 30.0, 32
STEP_LIMIT = 20_000  # for targets up to 10, where an explicit solver would need about e^50 steps


def seconds(call, repeats):
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def by_dopri5(mu, t, **options):
    times = t if t[0] == 0 else torch.cat([torch.zeros(1).double(), t])
    field = lambda _, v: (mu - v) * torch.exp(v * v / 2)
    path = odeint(field, torch.zeros_like(mu), times, method="dopri5", rtol=1e-6, atol=1e-9, options=options or None)
    return path[-len(t) :]


def by_radau(mu, t):
    def one(m):
        field = lambda _, v: (m - v) * np.exp(v * v / 2)
        span = (0.0, float(t[-1]))
        return solve_ivp(field, span, [0.0], "Radau", t_eval=t.numpy(), rtol=1e-12, atol=1e-13).y[0]

    return torch.from_numpy(np.stack([one(m) for m in mu.tolist()], -1))


def exponentials(mu, t):
    """How many exponentials the quadratures of one call take."""
    counted, original = 0, _depth._excess

    def counting(target, *rest, rule):
        nonlocal counted
        counted += target.numel() * len(rule[1])
        return original(target, *rest, rule=rule)

    _depth._excess = counting
    salience.trajectory(mu, t)
    _depth._excess = original
    return counted


def floor(count):
    chunk = torch.linspace(-8, 0, _depth._CHUNK * 16, dtype=torch.float64)
    out = torch.empty_like(chunk)
    return seconds(lambda: torch.exp(chunk, out=out), 20) * count / chunk.numel()


def compare(name, mu, t, target):
    ours = seconds(lambda: salience.trajectory(mu, t), 7)
    path = salience.trajectory(mu, t)
    start = time.process_time()
    other = by_dopri5(mu, t)
    peer = time.process_time() - start
    some = torch.arange(0, COMPONENTS, COMPONENTS // CHECKED)
    reference = by_radau(mu[some], t)
    count = exponentials(mu, t)
    least = floor(count)
    row = {
        "what": name,
        "joma_s": ours,
        "dopri5_s": peer,
        "dopri5/joma": peer / ours,
        "target": target,
        "joma_error": (path[:, some] - reference).abs().max().item(),
        "dopri5_error": (other[:, some] - reference).abs().max().item(),
        "exponentials": count,
        "bytes_out": path.numel() * 8,
        "floor_s": least,
        "joma/floor": ours / least,
    }
    print(
        f"{name:<24} joma {ours * 1e3:9.2f} ms  dopri5 {peer:7.2f} s  {peer / ours:7.0f}x (target {target}x)  "
        f"errors {row['joma_error']:.0e}, {row['dopri5_error']:.0e}  {count:.1e} exps, {ours / least:.1f}x their floor"
    )
    return row


def stiff(mu):
    """Targets up to 10: joma answers, the explicit solver gives up."""
    wide, t = 1 + 3 * (mu - 1), torch.linspace(0.003, 0.3, 100, dtype=torch.float64)
    ours = seconds(lambda: salience.trajectory(wide, t), 7)
    some = wide[:: COMPONENTS // CHECKED]
    error = max(time_error(m, v, at) for m, path in zip(some, salience.trajectory(some, t).T, strict=True)
                for v, at in zip(path.tolist(), t.tolist(), strict=True) if v < 0.999 * m)  # fmt: skip
    start = time.process_time()
    try:
        by_dopri5(wide, t, max_num_steps=STEP_LIMIT)
        outcome = "finished"
    except AssertionError as reason:
        outcome = f"stopped: {reason}"
    peer = time.process_time() - start
    name = "mu up to 10, 100 times"
    print(f"{name:<24} joma {ours * 1e3:9.2f} ms, time off by {error:.0e}  dopri5 {outcome} ({peer:.1f} s)")
    return {"what": name, "joma_s": ours, "joma_relative_time_error": error, "dopri5": outcome, "dopri5_s": peer}


def time_error(mu, v, t):
    """How far the time that v belongs to, by an adaptive quadrature, is from the time it was asked for."""
    mu = float(mu)
    took, _ = quad(lambda u: np.exp(-u * u / 2) / (mu - u), 0, v, epsabs=0, epsrel=1e-13, limit=200)
    return abs(took / t - 1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mu = 3 * torch.rand(COMPONENTS, dtype=torch.float64) + 1
    many = torch.linspace(0, HORIZON, 100, dtype=torch.float64)
    rows = [
        compare("one time, t = 30", mu, many[-1:], 500),
        compare("100 times up to 30", mu, many, 5),
        stiff(mu),
    ]
    record("salience", rows)


if __name__ == "__main__":
    main()
