"""What brings attention entropy back after its valley: a layer's own weights, or a change of what it reads?

Two kinds of evidence. The change of each layer's entropy is split by groups of weights (`joma.measure.allocation`), on
the way down, from the start to the valley, and on the way back, from the valley to the end. And twins go on from the
valley with one group frozen.

What was fixed when: the valley at paper scale is step 2,000, where the mean over layers of Figure 6's kept curves is
lowest at 1, 2, 5 and 10 layers. Those curves are of the same recipe and have five of the six seeds that are judged
here, so the valley is not free of their noise. The sixth seed had no say. What matters, and which layers count as
coming back, was decided before any run at paper scale. That a layer comes back is read from the seeds that it is then
judged by, which favours "the rebound needs this" a little. One sketch with one seed had been seen (one and two layers).
Where no higher layer comes back by itself, all of them are judged by their mean: that was decided after the run at
paper scale, in which it concerns ten layers alone, and it turned no verdict. Sizes and valley of the quick scale were
chosen because their entropy comes back, on other seeds than those that are judged. Most small networks of Python source
that were tried fall on or come back by less than chance, and no second layer of them comes back by what matters.
"""

from __future__ import annotations

from functools import partial

from joma.claims.contract import Drawing, Finding, Progress, Study, each_claim
from joma.recipes.language import PAPER, corpus, same_text
from joma.runs import Run
from joma.studies.rebound._cause_claims import (
    CLOSES,
    LOWER_MLP,
    NEEDS_BLOCK,
    NEEDS_EMBEDDINGS,
    NEEDS_QK,
    OWN_FIRST,
    OWN_HIGHER,
)
from joma.studies.rebound._cause_figures import draw_bars, draw_parts, draw_twins
from joma.studies.rebound._cause_judging import judge_closing, judge_lower_mlp, judge_own, judge_twin
from joma.studies.rebound._cause_networks import BLOCK, Config, train_plan
from joma.studies.rebound._cause_record import first_layers, higher_layers


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train all depths and their twins, and split the changes of entropy on the way."""
    train_plan(config, corpus(config, progress), run, progress)


def _own_first(run: Run) -> Finding:
    return judge_own(OWN_FIRST, run, first_layers(run))


def _own_higher(run: Run) -> Finding:
    return judge_own(OWN_HIGHER, run, higher_layers(run))


def draw(run: Run) -> list[Drawing]:
    """The parts over training, the parts of both ways, and the twins."""
    return [draw_parts(run), draw_bars(run), draw_twins(run)]


STUDY = Study(
    name="rebound-cause",
    title="Why attention comes back: a layer's own weights, or what it reads",
    version=1,
    claims=(OWN_FIRST, OWN_HIGHER, NEEDS_QK, NEEDS_BLOCK, NEEDS_EMBEDDINGS, LOWER_MLP, CLOSES),
    quick=Config(),
    paper=Config(
        **PAPER
        | {
            "dropout": 0.2,
            "length": 35,
            "valid_sequences": 40,
            "steps": 10_000,
            "every": 250,
            "seeds": 6,
            "layers": (1, 2, 5, 10),
            "twins": (1, 2, 5, 10),
            "rate": 1e-4,
            "valley": 2_000,
            "deep_steps": 6_000,
            "allocate": 100,
            "altered": True,
        }
    ),
    run=run,
    judge=each_claim(
        _own_first,
        _own_higher,
        partial(judge_twin, NEEDS_QK, frozen="QK"),
        partial(judge_twin, NEEDS_BLOCK, frozen=BLOCK),
        partial(judge_twin, NEEDS_EMBEDDINGS, frozen="embeddings"),
        judge_lower_mlp,
        judge_closing,
    ),
    draw=draw,
    check=same_text,
    about=(
        "Figure 6's language models are trained, and the change of each layer's entropy is split by groups of weights: "
        "its own queries and keys, the embeddings, and the weights of layers below. The split is exact up to a closing "
        "error that is reported. Twins go on from the valley with queries and keys, or values, MLPs and norms, or "
        "embeddings frozen. Only layers that come back are judged. Networks of five and ten layers train for 6,000 "
        "steps, the others for 10,000; with ten layers only queries and keys are frozen. Quick scale trains "
        "small models on Python source."
    ),
)
