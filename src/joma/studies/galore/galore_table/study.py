"""The study of GaLore's table: its sizes, its claims, and what it is about."""

from joma.claims.contract import Study
from joma.studies.galore.galore_table import claims, judge
from joma.studies.galore.galore_table.config import FULL, GALORE, INSTALLED, METHODS, SCALED, GaloreTableConfig
from joma.studies.galore.galore_table.figures import draw
from joma.studies.galore.galore_table.run import run
from joma.studies.galore.galore_table.text import same_text

STUDY = Study(
    name="galore-table",
    title="GaLore's table of perplexities, with a tuned baseline",
    version=1,
    claims={
        claims.CLOSE: judge.judge_close,
        claims.FIRST: judge.judge_first,
        claims.ADAPTERS: judge.judge_adapters,
        claims.FACTORS: judge.judge_factors,
        claims.SUBSPACE: judge.judge_subspace,
        claims.MEMORY: judge.judge_memory,
        claims.TIME: judge.judge_time,
        claims.PRINTED: judge.judge_printed,
    },
    quick=GaloreTableConfig(),
    paper=GaloreTableConfig(
        methods=METHODS, text=INSTALLED, source=110_000_000, vocabulary=32_000, width=512, mlp=1376, heads=8, layers=8,
        context=256, batch=128, at_once=128, rank=128, refresh=200, alpha=32.0,
        rates=(0.01, 0.005, 0.001, 0.0005, 0.0001), restarts=4, sweep_steps=80, steps=512, looks=4,
        neighbours=(FULL, SCALED, GALORE), held_out=768, device="cuda",
    ),
    run=run,
    draw=draw,
    check=same_text,
    about=(
        "A LLaMA is trained by eight methods: AdamW with one rate, AdamW with a smaller rate in the blocks (GaLore's "
        "scale), GaLore, GaLore with random subspaces, LoRA on frozen initial weights, ReLoRA, weights that are "
        "products of two factors, and Muon. Each method first tries all rates at a short horizon. Its best rate is "
        "then used at the long horizon, with several seeds. All methods read the same batches in the same order, with "
        "the same warm-up, cosine and clipping. The control is full rank at its own best rate. A verdict comes from "
        "the interval over seeds of the difference of held-out losses. A network that knows no more than how frequent "
        "tokens are does not count."
    ),
)  # fmt: skip
