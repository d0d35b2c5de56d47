"""Theory playground: move the numbers of JoMA's theorems: marimo edit examples/notebooks/theory.py"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import matplotlib.pyplot as plt
    import torch

    from joma.theory import linear, salience, spread

    return linear, mo, plt, salience, spread, torch


@app.cell
def _(mo):
    mo.md("""
    # Theory playground

    Two tokens compete for the attention of one hidden neuron. With a **linear MLP** (Theorem 2) one takes everything.
    With a **nonlinear MLP** (equation 6) attention first sharpens and then spreads again. Every curve is a closed form
    of `joma.theory`.
    """)


@app.cell
def _(mo):
    ratio = mo.ui.slider(0.05, 1.5, 0.05, value=0.8, label="saliency of token 2 (that of token 1 is 1)")
    start = mo.ui.slider(0.0, 0.5, 0.05, value=0.0, label="weight of token 2 at the start")
    mo.vstack([mo.md("## Theorem 2: who wins"), ratio, start])
    return ratio, start


@app.cell
def _(linear, plt, ratio, start, torch):
    saliency = torch.tensor([1.0, ratio.value], dtype=torch.float64)
    begin = torch.tensor([0.0, start.value], dtype=torch.float64)
    blow_up = linear.blow_up_time(saliency, v0=begin)
    winner = int(blow_up.argmin()) + 1
    times = torch.linspace(0, 0.999 * float(blow_up.min()), 200, dtype=torch.float64)
    weights = linear.trajectory(saliency, times, v0=begin)
    figure_winner, axis_winner = plt.subplots(figsize=(6, 3))
    axis_winner.plot(times, weights, label=["token 1", "token 2"])
    axis_winner.set(xlabel="time", ylabel="weight v", title=f"token {winner} wins")
    axis_winner.legend()
    figure_winner
    return blow_up, weights, winner


@app.cell
def _(mo):
    second = mo.ui.slider(0.1, 3.0, 0.1, value=2.0, label="target of token 2 (that of token 1 is 3)")
    mo.vstack([mo.md("## Equation 6: entropy falls and recovers"), second])
    return (second,)


@app.cell
def _(plt, salience, second, torch):
    moments = torch.logspace(-2, 1.5, 200, dtype=torch.float64)
    entropy = salience.entropy_curve([3.0, second.value, 1.0], moments)
    recovered = float(entropy[-1] - entropy.min())
    figure_entropy, axis_entropy = plt.subplots(figsize=(6, 3))
    axis_entropy.semilogx(moments, entropy)
    axis_entropy.set(xlabel="time", ylabel="entropy (nats)", title=f"recovers by {recovered:.2f} nats")
    figure_entropy
    return entropy, recovered


@app.cell
def _(mo):
    keys = mo.ui.slider(16, 4096, 16, value=1024, label="keys")
    mo.vstack([mo.md("## Entropy against the spread of logits"), keys])
    return (keys,)


@app.cell
def _(keys, plt, spread, torch):
    variances = torch.linspace(0.01, 4 * float(spread.critical_variance(keys.value)), 100, dtype=torch.float64)
    expected = spread.gaussian_entropy(variances, keys.value)
    figure_spread, axis_spread = plt.subplots(figsize=(6, 3))
    axis_spread.plot(variances, expected, label="expected entropy")
    axis_spread.axvline(float(spread.critical_variance(keys.value)), ls=":", color="gray", label="critical variance")
    axis_spread.set(xlabel="variance of a query's logits", ylabel="entropy (nats)")
    axis_spread.legend()
    figure_spread
    return (expected,)


if __name__ == "__main__":
    app.run()
