"""The gallery: one card per study, with a figure, what it measured in one sentence, and its name.

python docs/make_gallery.py [joma-out/findings.json]

Figures are drawn from the records that results/ keeps. Where no record is kept, from the run beside the given file,
which `joma verify` wrote; without that the card stays as it is.
"""

import io
import re
import sys
from pathlib import Path

from PIL import Image
from verdict_table import RECORDS

from joma.claims.contract import Drawing
from joma.figures.style import house_style
from joma.runs import Run
from joma.studies import load, names, room
from joma.studies.stored import stored_runs

DOCS = Path(__file__).parent
PAGE = DOCS / "gallery.md"
PICTURES = DOCS / "_static" / "gallery"
WIDTH, COLOURS = 480, 16
"""Of a small picture: all of them together stay below 150 kB."""
FINDING, TITLE = 150, 40
"""The most letters of a sentence, and of the title of a panel: a card is read at a glance."""
SUBJECTS = {
    "invariant": ("Theorem 1: what attention and MLP conserve together", "explanation/theory/invariant"),
    "linear": ("Theorem 2: a linear MLP", "explanation/theory/linear"),
    "isotropic": ("Lemmas 1 to 5 and Theorem 3: a nonlinear MLP", "explanation/theory/isotropic"),
    "salience": ("Theorem 4 and equation 6: salient components first", "explanation/theory/salience"),
    "hierarchy": ("Theorem 5, Table 1 and Section 5: latent hierarchies", "results/hierarchy-studies"),
    "syntax": ("Section 5 on real code", "results/python-hierarchy"),
    "language": ("Figures 6 and 8: language models", "results/figure6"),
    "ablations": ("Ablations: what the recovery needs", "results/ablations"),
    "rebound": ("Why attention recovers, and what can be predicted", "explanation/why-attention-comes-back"),
    "stability": ("Stability: warnings before training diverges", "results/collapse"),
    "checkpoints": ("Figures 7 and 10: series of checkpoints, neurons", "results/figure7"),
    "sparsity": ("Sparse attention: caches, sinks, active parts", "results/sparse-attention"),
    "depth_width": ("MobileLLM: deep and thin against shallow and wide", "results/depth-width"),
    "scan_snap": ("Scan&Snap: what one layer learns first", "results/scan-snap"),
    "reversal": ("The reversal curse and chain of thought", "results/reversal"),
    "inductive_bias": ("Inductive bias: what the loss does not decide", "results/inductive-bias"),
    "grokking": ("Grokking: data that a group operation needs", "results/grokking"),
    "cdag": ("CDAG: backpropagated gradients", "explanation/theory/cdag"),
    "galore": ("GaLore: gradients of low rank", "results/galore-lowrank"),
}
"""By folder of studies: the heading, and the page that the heading leads to."""
HEAD = """# Gallery

One card per study. `joma verify NAME` repeats it, and {doc}`results/index` has its verdicts. The report describes every
figure in words.
"""


def main() -> None:
    runs: dict[str, Path] = {}
    for ledger in sys.argv[1:]:
        runs |= {name: path for name, path in stored_runs(Path(ledger).parent) if path is not None}
    PICTURES.mkdir(exist_ok=True)
    lines, last = [HEAD], ""
    for name in names():
        if (here := room(name)) != last:
            title, page = SUBJECTS[here]
            lines, last = [*lines, f"## {title}\n\n{{doc}}`{page}`\n"], here
        lines.append(card(name, runs.get(name)))
    PAGE.write_text("\n".join(lines), encoding="utf-8")


def card(name: str, run: Path | None) -> str:
    if (record := RECORDS / name / f"{name}.sqlite").is_file():
        run = record
    if run is None:
        return written(name)
    drawing = first_drawing(name, run)
    sentence = first_sentence(drawing.caption)
    found = sentence if len(sentence) <= FINDING else plain(ended(load(name).title))
    return f"### {name}\n\n![{plain(outline(drawing))}]({picture(name, drawing)})\n\n{found}\n"


def written(name: str) -> str:
    """The card that the page has."""
    text = PAGE.read_text(encoding="utf-8")
    return re.search(rf"^### {name}\n.*?(?=\n#|\Z)", text, re.DOTALL | re.MULTILINE)[0]  # type: ignore[index]


def outline(drawing: Drawing) -> str:
    """The title of the first panel, or what it measures. The report has every line."""
    if drawing.alt:
        return drawing.alt.split(". ")[0].removesuffix(".") + "."
    axes = [axis for axis in drawing.figure.axes if axis.lines or axis.patches or axis.collections or axis.images]
    titles = (axis.get_title() or axis.get_title("left") for axis in axes)
    written = [title or " by ".join(filter(None, (axis.get_ylabel(), axis.get_xlabel())))
            for title, axis in zip(titles, axes, strict=True)]  # fmt: skip
    shown = re.sub(r"[$\\]", "", next(filter(None, written), "A figure"))
    return ended(shown) if len(shown) < TITLE else shown[:TITLE].rpartition(" ")[0].rstrip(",;:") + " ..."


def ended(title: str) -> str:
    return title if title.endswith("?") else f"{title}."


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
