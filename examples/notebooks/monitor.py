"""Monitor a run: train a small model and look into its attention. marimo edit examples/notebooks/monitor.py"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import tempfile
    from pathlib import Path

    import marimo as mo
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from joma.monitor import Monitor
    from joma.runs import Run

    return GPT2Config, GPT2LMHeadModel, Monitor, Path, Run, mo, tempfile, torch


@app.cell
def _(mo):
    rate = mo.ui.dropdown({"0.001": 1e-3, "0.003": 3e-3, "0.01": 1e-2}, value="0.003", label="learning rate")
    steps = mo.ui.slider(40, 400, 20, value=60, label="steps")
    _about = mo.md("""
    # Monitor a run

    A small GPT-2 learns to repeat a text. A monitor reads one fixed batch every 20 steps. It does not change the
    training: the weights end bit for bit as without it.
    """)
    mo.vstack([_about, rate, steps])
    return rate, steps


@app.cell
def _(GPT2Config, GPT2LMHeadModel, Monitor, Path, rate, steps, tempfile, torch):
    torch.manual_seed(0)
    shape = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, bos_token_id=0, eos_token_id=0, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate.value)
    *batches, probe = torch.randint(16, (steps.value + 1, 16, 8)).repeat(1, 1, 2)  # eight tokens, twice
    path = Path(tempfile.mkdtemp()) / "run.joma"
    losses = []
    with Monitor(model, probe={"input_ids": probe}, every=20, out=path) as monitor:
        for batch in batches:
            optimizer.zero_grad()
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            monitor.step()
            losses.append(loss.item())
    return losses, path


@app.cell
def _(Run, losses, mo, path):
    with Run.open(path) as run:
        entropy = run.array("entropy")  # steps, layers, heads
        measured = run.steps("entropy")
        figure = run.plot("entropy", "largest_logit")
    _said = mo.md(f"""
    The loss went from {losses[0]:.2f} to **{losses[-1]:.2f}** nats, the mean entropy of attention from
    {entropy[0].mean():.2f} to **{entropy[-1].mean():.2f}** nats.
    """)
    mo.vstack([_said, figure])
    return entropy, measured


@app.cell
def _(mo, path):
    mo.md(f"""
    Look closer from a terminal: `joma view {path}` opens the record in a browser, and `joma watch {path}` follows a run
    while it goes on.
    """)


if __name__ == "__main__":
    app.run()
