"""What sparse attention buys: the loss of a network that keeps a part of its cache, over training.

The sizes of the quick scale were tuned until it decided something.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from joma.claims.contract import Claim, Drawing, Finding, Study
from joma.claims.declare import Claims
from joma.claims.guards import beyond, hardest
from joma.claims.verdicts import at_least, at_most, by_effect, not_run, only_at_paper_scale
from joma.figures.bands import mean_and_band
from joma.figures.labels import label_lines
from joma.figures.policies import LOOKS, in_order, share_axis
from joma.figures.reading import course, listing, number
from joma.figures.style import BLUE, CONTROL, GREEN, INK, ORANGE, Axes, panels
from joma.measure.correlation import pearson
from joma.measure.intervals import compare
from joma.runs import Run
from joma.studies.sparsity.kv_cache.run import COMMAND, FAR, FIFTH, KvCacheConfig, Series, prefix, run

NATS = 0.02  # of a loss: smaller costs count as none, as in Figures 6 and 8
KEYS = 0.1  # of all keys: a tenth of a cache more or less
PARTIAL = 0.1  # of a partial correlation: one per cent of what the loss leaves unexplained
SPARSE = 0.95  # of the keys are zero, as H2O says
ABSENT = "stories260K was not found through JOMA_DATA when the run was made"
UNLEARNED = "no network learned to predict the next token"
OF_KEYS: Any = {"matters": KEYS, "unit": "%", "ceiling": 1.0}
OF_LOSS: Any = {"matters": NATS, "unit": "nats"}

CLAIMS = Claims()
Judged = Callable[["Series", Claim], dict[str, Any]]


def _of_learned(name: str, source: str, **said: Any) -> Callable[[Judged], Judged]:
    def register(evidence: Judged) -> Judged:
        @wraps(evidence)
        def judging(run: Run, claim: Claim) -> Finding:
            return _judge(run, claim, evidence)

        CLAIMS.declare(name, source, **said)(judging)
        return evidence

    return register


def _judge(run: Run, claim: Claim, evidence: Judged, kind: str = "") -> Finding:
    series = Series(run, kind)
    if not series.kept:
        return not_run(claim, claim.expected, UNLEARNED, COMMAND)
    found = evidence(series, claim)
    return by_effect(claim, **found | {"details": found["details"] | series.left_out})


@_of_learned("attention-is-sparse", "H2O Sec. 3", **OF_KEYS)
def _zeros(series: Series, claim: Claim) -> dict[str, Any]:
    """In a trained network, over 95 % of the keys get less than 1 % of the largest weight of their query.

    Expected: 95 % of the keys are zero, a tenth more than in the untrained network and than with random logits
    """
    zero, untrained, noise = series.mean("zero"), series.mean("zero", 0), series.mean("random zero")
    controls = {"untrained": untrained, "random logits of the same spread": noise}
    return {
        "found": hardest(claim, {name: compare(zero, control) for name, control in controls.items()}),
        "what": "share of keys below 1 % of their query's largest weight",
        "size": [at_least("share of such keys", compare(zero), SPARSE, "%")],
        "details": {
            "shares": {
                **{name: float(control.mean()) for name, control in controls.items()},
                "mass on the heaviest tenth": float(series.mean("top").mean()),
            }
        },
    }


@_of_learned(
    "sparsity-arises-in-training",
    "JoMA talk slide takeaways",
    **OF_KEYS,
    uses=("scan-snap-decoder/attention-becomes-sparse",),
)
def _arises(series: Series, claim: Claim) -> dict[str, Any]:
    """Attention becomes sparse over training.

    Expected: attention leaves out a tenth more of the keys than before training
    """
    over = 1 - series.of("effective").mean((0, 2, 3))
    return {
        "found": compare(1 - series.mean("effective"), 1 - series.mean("effective", 0)),
        "what": "share of keys that attention leaves out, 1 - e^entropy / keys (control: untrained)",
        "details": {"over training": {f"step {step}": float(x) for step, x in zip(series.steps, over, strict=True)}},
    }


@_of_learned("heavy-hitters-stay", "H2O Sec. 3", **OF_KEYS)
def _hitters(series: Series, claim: Claim) -> dict[str, Any]:
    """A small set of keys draws attention from early and late queries alike.

    Expected: the sets share a tenth more of their keys than by chance and than before training
    """
    overlap, chance = series.mean("overlap"), series.mean("chance")
    controls = {"chance": compare(overlap, chance), "untrained": compare(overlap, series.mean("overlap", 0))}
    return {
        "found": hardest(claim, controls),
        "what": "overlap of the heaviest tenth of the keys between two quarters of the queries",
        "details": {"overlap": {"chance": float(chance.mean())}},
    }


@_of_learned(
    "a-fifth-of-the-cache-suffices",
    "H2O Sec. 3",
    **OF_LOSS,
    uses=("kv-cache/attention-is-sparse", "kv-cache/heavy-hitters-stay"),
)
def _fifth(series: Series, claim: Claim) -> dict[str, Any]:
    """A network that keeps the fifth of its keys with the most attention loses almost nothing.

    Expected: at a fifth of the cache, H2O's choice costs at most 0.02 nats, and 0.02 nats less than random keys with
    the same ones protected and than the window
    """
    cost = {policy: series.cost(policy) for policy in series.policies}
    worth = float((series.mean("permuted") - series.mean("loss")).mean())
    return {
        **_against_h2o(claim, cost),
        "what": "cost of the other policy at a fifth of the cache (control: H2O's choice)",
        "details": {
            "cost at a fifth of the cache, in nats": {name: float(each.mean()) for name, each in cost.items()},
            "distant words in random order": {"cost, in nats": worth},
        },
    }


def _against_h2o(claim: Claim, cost: dict[str, Any]) -> dict[str, Any]:
    own = cost["h2o"]
    return {
        "found": hardest(claim, {f"{name} minus H2O": compare(cost[name], own) for name in ("random", "window")}),
        "size": [at_most("cost of H2O's choice", compare(own), NATS, "nats")],
    }


@_of_learned(
    "first-tokens-rescue-the-window", "StreamingLLM Sec. 3", **OF_LOSS, uses=("sinks/first-token-draws-attention",)
)
def _window(series: Series, claim: Claim) -> dict[str, Any]:
    """A window over the last tokens loses much; with the first few tokens kept beside it, the loss is restored.

    Expected: at a fifth of the cache, the window costs 0.02 nats more than with the first tokens, which cost at most
    0.02
    """
    window, sinks = series.cost("window"), series.cost("sinks")
    return {
        "found": compare(window, sinks),
        "what": "cost of the window at a fifth of the cache (control: first tokens and window)",
        "size": [at_most("cost with the first tokens", compare(sinks), NATS, "nats")],
        "details": {"attention on the first key": {"share": float(series.mean("sink").mean())}},
    }


@_of_learned(
    "sparsity-explains-what-eviction-costs",
    "JoMA talk slide sparse",
    matters=PARTIAL,
    ceiling=1.0,
    uses=("kv-cache/sparsity-arises-in-training",),
)
def _explains(series: Series, claim: Claim) -> dict[str, Any]:
    """Sparse attention is why caches can be cut: the sparser attention is, the less eviction costs.

    Expected: with the loss held fixed, sequences and checkpoints with sparser attention lose less (partial correlation
    below -0.1)

    Over sequences and trained checkpoints, seed by seed.
    """
    cost, random, window = (series.costs(policy)[:, 1:] for policy in ("h2o", "random", "window"))
    sparse, loss = 1 - series.of("effective by sequence")[:, 1:], series.of("loss")[:, 1:]

    def each(relation: Callable[..., float], *rows: Any) -> list[float]:
        return [relation(*values) for values in zip(*rows, strict=True)]

    # Each checkpoint without its mean: what is left differs between sequences.
    centred = [values - values.mean(-1, keepdims=True) for values in (cost, sparse, loss)]
    correlations = {
        "with sparsity, loss held fixed, within checkpoints": each(_partial, *centred),
        "with sparsity alone": each(_correlation, cost, sparse),
        "with the loss alone": each(_correlation, cost, loss),
        "with sparsity, loss held fixed, random": each(_partial, random, sparse, loss),
        "with sparsity, loss held fixed, window": each(_partial, window, sparse, loss),
    }
    return {
        "found": compare([-value for value in each(_partial, cost, sparse, loss)], 0.0),
        "what": "minus the partial correlation of cost and sparsity, the loss held fixed",
        "details": {"correlation of the cost": {name: float(np.mean(values)) for name, values in correlations.items()}},
    }


def _correlation(one: Any, other: Any) -> float:
    return float(pearson(one.ravel(), other.ravel()))


def _partial(cost: Any, sparse: Any, loss: Any) -> float:
    """The correlation of cost and sparsity that is left when both are freed from what the loss says of them."""
    fixed = np.stack([np.ones(loss.size), loss.ravel()], 1)

    def freed(values: Any) -> Any:
        values = values.ravel()
        return values - fixed @ np.linalg.lstsq(fixed, values, rcond=None)[0]

    return _correlation(freed(cost), freed(sparse))


@CLAIMS.declare("a-fifth-suffices-far-back", "H2O Sec. 3", **OF_LOSS, uses=("kv-cache/a-fifth-of-the-cache-suffices",))
def _far(run: Run, claim: Claim) -> Finding:
    """In a network that must look far back, the fifth of the keys with the most attention does almost as well as all.

    Expected: at a fifth of the cache, H2O's choice costs at most 0.02 nats, and 0.02 nats less than random keys and
    than the window; distant words in random order cost 0.02 nats or more

    If distant words were worth nothing to these networks, no cut could hurt.
    """
    if f"{prefix(0, FAR)}loss" not in run:
        return only_at_paper_scale(claim, claim.expected, "words that are said twice need a larger network", COMMAND)

    def evidence(series: Series, claim: Claim) -> dict[str, Any]:
        worth = compare(series.mean("permuted"), series.mean("loss"))
        return _fifth(series, claim) | {"controls": [beyond(claim, "cost of distant words in random order", worth)]}

    return _judge(run, claim, evidence, FAR)


@CLAIMS.declare("a-fifth-suffices-others-network", "H2O Sec. 3", **OF_LOSS)
def _stories(run: Run, claim: Claim) -> Finding:
    """In a network that others trained, the fifth of the keys with the most attention does almost as well as all.

    Expected: at a fifth of the cache, H2O's choice costs 0.02 nats less than random keys and than the window

    Over sequences: it is one network.
    """
    if "stories/loss" not in run:
        return not_run(claim, claim.expected, ABSENT, "JOMA_DATA=FOLDER joma verify kv-cache --fresh")
    fifth = list(run.config["keeps"]).index(FIFTH)
    cut = run.value("stories/cut")[:, fifth] - run.value("stories/loss")  # (policies, sequences)
    cost = dict(zip(run.config["policies"], cut, strict=True))
    what = "cost of the other policy (control: H2O's choice)"
    details = {
        "cost at a fifth of the cache, in nats": {name: float(each.mean()) for name, each in cost.items()},
        "attention": {
            "share of keys that are zero": float(run.value("stories/zero").mean()),
            "the same with random logits": float(run.value("stories/random zero").mean()),
            "on the first key": float(run.value("stories/sink").mean()),
        },
    }
    return by_effect(claim, **_against_h2o(claim, cost), what=what, over="sequences", details=details)


OVER_TRAINING = ("window", "sinks", "h2o", "random")  # policies whose cost is drawn over training


def draw(run: Run) -> list[Drawing]:
    """Nothing where no network learned."""
    series = Series(run)
    drawn = [_by_share(series), _over_training(series)] if series.kept else []
    far = Series(run, FAR) if f"{prefix(0, FAR)}loss" in run else None
    return [*drawn, _by_share(far)] if far and far.kept else drawn


def _by_share(series: Series) -> Drawing:
    shown = sorted({1, len(series.steps) // 2 + 1, len(series.steps) - 1} & set(range(len(series.steps))))
    with_stories = "stories/loss" in series.run and not series.kind
    figure, axes = panels(len(shown) + with_stories, width=3.5)
    for axis, at in zip(axes, shown, strict=False):
        costs = {one: np.stack([series.cost(one, keep, at) for keep in series.keeps]) for one in series.policies}
        _panel(axis, series, costs, f"Step {series.steps[at]:,}")
    for axis in axes[1 : len(shown)]:
        axis.sharey(axes[0])
    axes[0].autoscale_view()
    label_lines(axes[len(shown) - 1])
    if with_stories:
        cost = (series.run.value("stories/cut") - series.run.value("stories/loss")).mean(-1)  # (policies, keeps)
        each = dict(zip(series.policies, cost[..., None], strict=True))
        _panel(axes[-1], series, each, "stories260K (its own scale)")
        label_lines(axes[-1])
    ends = {policy: float(series.cost(policy).mean()) for policy in series.policies}
    ranked = sorted(ends.items(), key=lambda item: item[1])
    # With their signs: a cut cache may also do better.
    listed = listing(f"{policy} {cost:+.3f}".replace(" -", " −") for policy, cost in ranked)
    scale = " The panel of stories260K has its own scale; the others share one." if with_stories else ""
    which = (
        "In networks that read every line of random words twice, a fifth" if series.kind else "After training, a fifth"
    )
    caption = (
        f"{which} of the cache costs, in nats per token: {listed}. The whole cache has a loss of "
        f"{number(float(series.mean('loss').mean()), 'nats')}. Lines are means over {len(series.kept)} networks, bands "
        "go from the lowest to the highest. The loss is that of the last quarter of each sequence. top-k evicts "
        f"nothing and lets every query choose; random protects the same first and last keys as h2o.{scale}"
    )
    return Drawing("cost-by-share-far-back" if series.kind else "cost-by-share", caption, figure)


def _panel(axis: Axes, series: Series, costs: dict[str, Any], title: str) -> None:
    for policy in in_order(costs):
        mean_and_band(axis, series.keeps, costs[policy], label=policy, marker=".", shade=0.1, **LOOKS[policy])
    axis.axhline(0.0, color=INK, lw=0.6)
    share_axis(axis, series.keeps, "share of the cache kept")
    axis.set(title=title, ylabel="loss added (nats per token)")


def _over_training(series: Series) -> Drawing:
    figure, axes = panels(2, width=4.6)
    lines: dict[str, tuple[Any, dict[str, Any]]] = {
        "left out (1 - effective)": (1 - series.of("effective").mean((2, 3)), {"color": BLUE}),
        "zero as in H2O": (series.of("zero").mean((2, 3)), {"color": ORANGE}),
        "zero, random logits": (series.of("random zero").mean((2, 3)), {"color": CONTROL, "ls": "--"}),
    }
    for name, (rows, look) in lines.items():
        mean_and_band(axes[0], series.steps, rows, over=0, label=name, marker=".", **look)
    axes[0].axhline(SPARSE, color=INK, ls=":", lw=1, label="95 %")
    axes[0].set(title="Sparsity", ylabel="share of keys", ylim=(-0.02, 1.02))
    costs = {policy: series.costs(policy).mean(-1) for policy in OVER_TRAINING}
    costs["distant words\nin random order"] = (series.of("permuted") - series.of("loss")).mean(-1)
    for name, rows in costs.items():
        look = LOOKS.get(name, {"color": GREEN, "ls": "-."})
        mean_and_band(axes[1], series.steps, rows, over=0, label=name, marker=".", **look)
    axes[1].axhline(0.0, color=INK, lw=0.6)
    axes[1].set(title="Cost of keeping a fifth", ylabel="loss added (nats per token)")
    for axis in axes:
        axis.set_xscale("symlog", linthresh=max(1, int(series.steps[1])))
        axis.set(xlabel="training step (log scale)", xlim=(0, None))
    left_out, zero, _ = (course(series.steps, rows.mean(0), "%") for rows, _ in lines.values())
    h2o, random = (course(series.steps, costs[name].mean(0).round(3), "nats") for name in ("h2o", "random"))
    caption = (
        f"Over training, the share of keys that attention leaves out {left_out}; the share that H2O counts as zero "
        f"{zero}. Meanwhile the cost of H2O's choice of a fifth of the keys {h2o}; that of random keys {random}. "
        "Random logits have the spread of the network's own."
    )
    return Drawing("sparsity-and-cost", caption, figure)


STUDY = Study(
    name="kv-cache",
    title="What sparse attention buys: a cache that forgets",
    version=2,
    claims=CLAIMS,
    # With ten seeds from 3000 on all claims of this text were decided, by differences that five seeds show.
    quick=KvCacheConfig(seeds=5),
    paper=KvCacheConfig(
        layers=6, width=512, heads=8, vocabulary=16_384, context=512, batch=8, steps=1_500, rate=1e-3,
        checkpoints=(16, 64, 256, 512, 1000), characters=4_000_000, held_out=200_000, wikitext=True,
        keeps=(0.05, 0.1, 0.2, 0.5), policies=("window", "sinks", "h2o", "h2o-oracle", "snapkv", "random", "top-k"),
        far=True, sinks=4, sequences=24, stories=24, stories_length=256, seeds=5, device="cuda",
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
        "lose. Other networks read lines of random words, each line twice: they must look back over a whole line, so "
        "that a cut can hurt. stories260K, a small Llama trained by others, is measured on stories of its own."
    ),
)  # fmt: skip
