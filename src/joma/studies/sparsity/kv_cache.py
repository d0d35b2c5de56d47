"""What sparse attention buys: the loss of a network that keeps a part of its cache, over training.

The sizes of the quick scale were tuned until it decided something.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from joma.claims.contract import NotRun, Progress, Study, each_claim
from joma.claims.text_source import remember_source
from joma.host.devices import lacking
from joma.runs import Run
from joma.studies.sparsity import _kv_findings as findings
from joma.studies.sparsity._kv_figures import draw
from joma.studies.sparsity._kv_measures import answers
from joma.studies.sparsity._kv_networks import COMMAND, Config, corpus, train_and_measure
from joma.studies.sparsity._kv_stories import find_stories, load_stories, written


def run(config: Config, run: Run, progress: Progress) -> None:
    """Train a series of checkpoints per seed and cut the cache of each; then that of stories260K."""
    if find_spec("transformers") is None:
        raise NotRun("transformers is not installed (the extra hf)", "pip install 'joma[hf]' && joma verify kv-cache")
    if lacks := lacking(config.device):
        raise NotRun(str(lacks), COMMAND)
    text = corpus(config)
    remember_source(run)
    for number in range(config.seeds):

        def of_this(share: float, doing: str, number: int = number) -> None:
            progress(0.9 * (number + share) / config.seeds, f"network {number + 1}: {doing}")

        train_and_measure(config, number, text, run, of_this)
    progress(0.9, "stories260K")
    path = find_stories()
    if path is not None and "stories/loss" not in run:
        _stories(config, path, run)


def _stories(config: Config, path: Path, run: Run) -> None:
    model = load_stories(path)
    tokens = written(model, config.stories, config.stories_length, config.seed)
    measured = answers(
        model.to(config.device), tokens.to(config.device), config.policies, config.keeps, config.sinks, seed=config.seed
    )
    run.record(0, {f"stories/{name}": value for name, value in measured.items()})


STUDY = Study(
    name="kv-cache",
    title="What sparse attention buys: a cache that forgets",
    version=2,
    claims=findings.CLAIMS,
    quick=Config(),
    paper=Config(
        layers=6,
        width=512,
        heads=8,
        vocabulary=16_384,
        context=512,
        batch=8,
        steps=1_500,
        rate=1e-3,
        checkpoints=(16, 64, 256, 512, 1000),
        characters=4_000_000,
        held_out=200_000,
        wikitext=True,
        keeps=(0.05, 0.1, 0.2, 0.5),
        policies=("window", "sinks", "h2o", "h2o-oracle", "snapkv", "random", "top-k"),
        sinks=4,
        sequences=24,
        stories=24,
        stories_length=256,
        seeds=3,
        device="cuda",
    ),
    run=run,
    judge=each_claim(*findings.JUDGES),
    draw=draw,
    about=(
        "A GPT-NeoX is trained from scratch for every seed. At every checkpoint it reads text that it was not trained "
        "on, with its whole cache and with a part of it, chosen by several policies. The cost of a policy is the loss "
        "it adds, in nats per token of the last quarter of each sequence. Random keys are the control: the same number "
        "of keys, the same first and last ones protected, the rest drawn by chance. Sparsity is measured on the same "
        "text. Its controls are the untrained network and Gaussian logits of the same spread. The cost of eviction is "
        "regressed on sparsity and on the loss over sequences and checkpoints, because a better network has more to "
        "lose. stories260K, a small Llama trained by others, is measured on stories that it wrote itself."
    ),
)
