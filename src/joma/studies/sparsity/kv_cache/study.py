"""The study `kv-cache`: its claims with their judges, its sizes."""

from __future__ import annotations

from joma.claims.contract import Study
from joma.studies.sparsity.kv_cache.figures import draw
from joma.studies.sparsity.kv_cache.judge import CLAIMS
from joma.studies.sparsity.kv_cache.run import KvCacheConfig, run

STUDY = Study(
    name="kv-cache",
    title="What sparse attention buys: a cache that forgets",
    version=2,
    claims=CLAIMS,
    quick=KvCacheConfig(),
    paper=KvCacheConfig(
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
