"""The study `sinks`: its claims with their judges, its sizes."""

from __future__ import annotations

from joma.claims.contract import Study
from joma.studies.sparsity._readings import check_text
from joma.studies.sparsity.sinks.figures import draw
from joma.studies.sparsity.sinks.judge import CLAIMS
from joma.studies.sparsity.sinks.run import SinksConfig, run

STUDY = Study(
    name="sinks",
    title="Attention sinks: do they need softmax?",
    version=1,
    claims=CLAIMS,
    quick=SinksConfig(),
    paper=SinksConfig(
        corpus="wikitext-2",
        tokens=1_000_000_000,
        vocabulary=4_000,
        words=64,
        triggers=8,
        pool=32_768,
        firsts=("fixed", "free"),
        layers=1,
        text_layers=4,
        width=128,
        heads=2,
        mlp=True,
        length=128,
        batch=16,
        steps=4_000,
        text_steps=5_000,
        every=250,
        rate=3e-3,
        text_rate=2e-3,
        valid=64,
        seeds=4,
        device="cuda",
        precision="tf32",
    ),
    run=run,
    draw=draw,
    check=check_text,
    about=(
        "Decoders with four kinds of attention are trained on a text and on a made language in which attention helps "
        "at few tokens only. The kinds are softmax, softmax with one more key of logit 0 and value 0 (off-by-one), the "
        "same with a learned logit (learned sink), and a sigmoid of each logit. All kinds begin with the same weights "
        "and read the same sequences. Measured is the attention of late queries, which see half of the sequence or "
        "more: how much of it goes to the first key. Uniform attention, the untrained network and the second key are "
        "the controls. The first word is also replaced by another one, and a copy of it is put elsewhere, to tell "
        "place from word. Kinds are compared only where softmax has a sink; a network that did not learn does not "
        "count."
    ),
)
