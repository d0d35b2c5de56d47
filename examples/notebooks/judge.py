"""Judge your own experiment, numbers over seeds: marimo edit examples/notebooks/judge.py"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import tempfile
    from pathlib import Path

    import marimo as mo

    from joma.claims.judging import judge_tables
    from joma.claims.power import seeds_needed, spread_of

    return Path, judge_tables, mo, seeds_needed, spread_of, tempfile


@app.cell
def _(mo):
    mo.md("""
    # Judge your own experiment

    Put one row per seed: the number with your change, and the number without it. **Before you look**, say which
    difference is the smallest that would matter to you.
    """)


@app.cell
def _(mo):
    table = mo.ui.text_area(
        "seed,new,old\n1,3.31,3.35\n2,3.29,3.36\n3,3.33,3.34\n4,3.30,3.36\n5,3.31,3.37\n",
        label="a table as CSV, with the columns seed, new and old",
        rows=8,
        full_width=True,
    )
    matters = mo.ui.number(start=0.0001, stop=1000, step=0.0001, value=0.02, label="smallest difference that matters")
    lower = mo.ui.checkbox(value=True, label="less is better")
    mo.vstack([table, matters, lower])
    return lower, matters, table


@app.cell
def _(Path, judge_tables, lower, matters, table, tempfile):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.csv"
        file.write_text(table.value)
        judged = judge_tables([file], effect="new", control="old", matters=matters.value, lower=lower.value)[0]
    verdict = judged.finding.full_verdict
    (arms,) = judged.cases.values()
    return arms, verdict


@app.cell
def _(arms, mo, verdict):
    found = arms.found
    bracket = f"[{found.difference_low:.4g}, {found.difference_high:.4g}]"
    mo.md(f"""
    ## {verdict}

    The difference in favour of your change is **{found.difference:.4g}** {bracket}, an interval of
    {100 * found.level:.0f} % over {len(arms.effect)} seeds.
    """)


@app.cell
def _(arms, matters, mo, seeds_needed, spread_of):
    deviation = spread_of(arms.found)
    needed = seeds_needed(matters.value, deviation, difference=2 * matters.value)
    mo.md(f"""
    The standard deviation over seeds is {deviation:.3g}. If the true difference is twice what matters, **{needed}**
    seeds would probably decide.
    """)
    return deviation, needed


if __name__ == "__main__":
    app.run()
