"""The gallery: one card per study, with a figure, its verdicts at both scales, one sentence and the command.

python docs/make_gallery.py joma-out/findings.json

The verdicts of both scales are those that results/ keeps, and so are the figures of paper scale. Where no record is
kept, the figure is drawn from the run beside the given file, which `joma verify` wrote.
"""

import io
import re
import sys
from pathlib import Path

from PIL import Image
from verdict_table import RECORDS, SHORT, kept, quick, shown

from joma.claims.contract import Drawing
from joma.figures.style import house_style
from joma.runs import Run
from joma.studies import load, names, room
from joma.studies.stored import stored_runs

DOCS = Path(__file__).parent
PICTURES = DOCS / "_static" / "gallery"
WIDTH, COLOURS = 480, 16
"""Of a small picture: all of them together stay below 150 kB."""
ROOMS = {
    "invariant": "Theorem 1: what attention and MLP conserve together",
    "linear": "Theorem 2: a linear MLP",
    "isotropic": "Lemmas 1 to 5 and Theorem 3: a nonlinear MLP",
    "salience": "Theorem 4 and equation 6: salient components first",
    "hierarchy": "Theorem 5, Table 1 and Section 5: latent hierarchies",
    "syntax": "Section 5 on real code",
    "language": "Figures 6 and 8: language models",
    "ablations": "Ablations: what the recovery needs",
    "rebound": "Why attention recovers, and what can be predicted",
    "stability": "Stability: warnings before training diverges",
    "checkpoints": "Figures 7 and 10: series of checkpoints, neurons",
    "sparsity": "Sparse attention: caches, sinks, active parts",
    "depth_width": "MobileLLM: deep and thin against shallow and wide",
    "scan_snap": "Scan&Snap: what one layer learns first",
    "reversal": "The reversal curse and chain of thought",
    "inductive_bias": "Inductive bias: what the loss does not decide",
    "grokking": "Grokking: data that a group operation needs",
    "cdag": "CDAG: backpropagated gradients",
    "galore": "GaLore: gradients of low rank",
}
HEAD = """# Gallery

One card per study: a figure, the result, the verdicts at both scales, and the command that repeats it.
The report describes every figure in words.

{legend}
"""


def main() -> None:
    ledger = Path(sys.argv[1])
    runs = {name: path for name, path in stored_runs(ledger.parent) if path is not None}
    PICTURES.mkdir(exist_ok=True)
    legend = " · ".join(f"{mark} {verdict}" for verdict, mark in SHORT.items())
    lines, last = [HEAD.format(legend=legend)], ""
    for name in names():
        if (here := room(name)) != last:
            lines, last = [*lines, f"## {ROOMS.get(here, here)}\n"], here
        lines.append(card(name, runs.get(name)))
    (DOCS / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


def card(name: str, run: Path | None) -> str:
    record = RECORDS / name / f"{name}.sqlite"
    drawing = first_drawing(name, record if record.is_file() else run)
    scales = f"quick {shown(quick(name))}"
    if paper := kept(name):
        scales += f" · paper scale {shown(paper)}"
    image = f"![{plain(outline(drawing))}]({picture(name, drawing)})"
    return (
        "\n\n".join([f"### {name}", image, first_sentence(drawing.caption), f"{scales} · `joma verify {name}`"]) + "\n"
    )


def outline(drawing: Drawing) -> str:
    """The titles of the panels; of one without a title, what it measures. The report describes every line of them.

    >>> outline(Drawing("one", "", None, alt="A flow chart."))
    'A flow chart.'
    """
    if drawing.alt:
        return drawing.alt.split(". ")[0].removesuffix(".") + "."
    axes = [axis for axis in drawing.figure.axes if axis.lines or axis.patches or axis.collections or axis.images]
    titles = (axis.get_title() or axis.get_title("left") for axis in axes)
    said = [title or " by ".join(filter(None, (axis.get_ylabel(), axis.get_xlabel())))
            for title, axis in zip(titles, axes, strict=True)]  # fmt: skip
    return re.sub(r"[$\\]", "", "; ".join(dict.fromkeys(filter(None, said)))) + "."


def first_drawing(name: str, record: Path) -> Drawing:
    """The figure that a study draws first, from the record."""
    with Run.open(record) as run, house_style():
        return load(name).draw(run)[0]


def picture(name: str, drawing: Drawing) -> str:
    """The kept figure, from the page; where none is kept, a small one is drawn."""
    if (RECORDS / name / f"{drawing.name}.png").is_file():
        return f"../results/{name}/{drawing.name}.png"
    small(drawing).save(PICTURES / f"{name}.png", optimize=True)
    return f"_static/gallery/{name}.png"


def small(drawing: Drawing) -> Image.Image:
    buffer = io.BytesIO()
    with house_style():
        drawing.figure.savefig(buffer, dpi=WIDTH / drawing.figure.get_figwidth(), facecolor="white")
    return Image.open(buffer).convert("RGB").quantize(COLOURS)


def first_sentence(text: str) -> str:
    """What stands before the first full stop that ends a sentence.

    >>> first_sentence("It falls by 0.5 nats, eq. 6 says. More.")
    'It falls by 0.5 nats, eq. 6 says.'
    """
    return plain(re.split(r"(?<=[^.]{3}[.!?])(?<!eq\.)(?<!Fig\.)(?<!Thm\.)\s+(?=\S)", text, maxsplit=1)[0])


def plain(text: str) -> str:
    """The text as Markdown shows it as it is."""
    return re.sub(r"([*_<>\[\]$`|])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    main()
