"""Verdicts and intervals on the pages of results are those of the kept records, read from their JSON alone.

What no finding has is computed from the run itself, by another code than the study's.
"""

import json
import re
from itertools import chain

import numpy as np
import pytest
import scipy.stats
from page_blocks import ROOT, built, text_of

from joma.runs import Run

RECORDS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("results/*/findings.json"))]
PAPER = {finding["id"]: finding for record in RECORDS for finding in record["findings"]}
QUICK = json.loads((ROOT / "results/quick.json").read_text(encoding="utf-8"))["findings"]
PAGES = [
    f"docs/{part}/{path.name}" for part in ("results", "explanation") for path in sorted(ROOT.glob(f"docs/{part}/*.md"))
]

ROWS = {
    "ablations": {
        "the recovery needs the nonlinearity": "nonlinearity/rebound-needs-nonlinearity",
        "the recovery needs an MLP": "nonlinearity/rebound-needs-mlp",
        "attention stays sparse with a linear MLP": "nonlinearity/linear-mlp-stays-sparse",
        "the fall needs the MLP": "nonlinearity/drop-needs-mlp",
    },
    "depth-width": {
        "deeper is better on Python source": "depth-width/deeper-on-python",
        "deeper is better on WikiText-2": "depth-width/deeper-on-wikitext",
        "deeper is better on trees": "depth-width/deeper-on-trees",
        "the best shape is deeper": "depth-width/best-shape-is-deeper",
        "shape counts more than the rate": "depth-width/shape-matters-more-than-rate",
        "deep trees favour depth": "depth-width/deep-trees-favour-depth",
        "order favours depth": "depth-width/order-favours-depth",
    },
    "galore-lowrank": {
        "gradients have a low stable rank": "galore-lowrank/gradient-is-low-rank",
        "the stable rank falls during training": "galore-lowrank/gradient-rank-falls",
        "a projector of rank m/4 keeps most of the energy": "galore-lowrank/quarter-rank-captures",
        "the subspace changes slowly": "galore-lowrank/subspace-changes-slowly",
        "V becomes low rank": "galore-lowrank/nodes-become-low-rank",
        "training makes the gradient V′ even lower than V": "galore-lowrank/nodes-gradient-is-lower",
        "rows that grow at different rates are the cause": "galore-lowrank/nodes-rows-carry-it",
    },
    "galore-table": {
        "GaLore is close to full rank, and better than factors": "galore-table/close-to-full-rank",
        "no method with low rank reaches full rank": "galore-table/full-rank-is-best",
        "GaLore is better than LoRA and ReLoRA": "galore-table/better-than-adapters",
        "factors are worst": "galore-table/factors-are-worst",
        "the gradient's subspace is better than a random one": "galore-table/subspace-of-the-gradient",
        "states take m r + 2 n r numbers": "galore-table/memory-of-states",
        "the overhead is below a tenth of a step": "galore-table/little-overhead",
        "the printed perplexities": "galore-table/printed-perplexities",
    },
    "rebound": {
        "learning rate": "rebound-onset/valley-by-rate",
        "number of words": "rebound-onset/valley-by-words",
        "flatter frequencies of words": "rebound-onset/valley-by-flatness",
        "frequency of the query's word": "rebound-onset/valley-by-queries",
        "size of the initial embeddings": "rebound-onset/valley-by-embedding",
    },
    "scan-snap": {
        "common tokens lose attention": "scan-snap/common-tokens-lose",
        "distinct tokens gain; frequent ones faster": (
            "scan-snap/distinct-tokens-gain scan-snap/frequent-tokens-grow-faster"
        ),
        "the same under SGD, one sequence per step": (
            "scan-snap/sgd-common-tokens-lose scan-snap/sgd-distinct-tokens-gain "
            "scan-snap/sgd-frequent-tokens-grow-faster"
        ),
        "Theorem 3, given its premise": "scan-snap/relative-gain",
        "its premise: one gain for all": "scan-snap/one-gain-for-all",
        "its bounds": "scan-snap/gain-bounds",
        "Theorem 4, transition time": "scan-snap/transition-time",
        "Theorem 4, late form": "scan-snap/late-growth",
        "Theorem 4, slope 2K η_Z/η_Y": "scan-snap/late-slope",
        "larger equal rates: earlier, larger B": "scan-snap/larger-rates-larger-growth",
        "larger η_Y at fixed η_Z: smaller B": "scan-snap/faster-decoder-denser-attention",
        "attention becomes sparser": "scan-snap/attention-sparser",
        "attention freezes": "scan-snap/attention-frozen",
    },
    "sparse-attention": {
        "Does attention become sparse in training?": "kv-cache/sparsity-arises-in-training",
        "Is it as sparse as H2O says?": "kv-cache/attention-is-sparse",
        "Do early and late queries share heavy hitters?": "kv-cache/heavy-hitters-stay",
        "Does a fifth of the cache suffice?": "kv-cache/a-fifth-of-the-cache-suffices",
        "And in a network that must look far back?": "kv-cache/a-fifth-suffices-far-back",
        "Do the first tokens rescue the window?": "kv-cache/first-tokens-rescue-the-window",
        "Does sparsity explain what eviction costs?": "kv-cache/sparsity-explains-what-eviction-costs",
        "stories260K at a fifth of its cache?": "kv-cache/a-fifth-suffices-others-network",
        "Does the first token draw attention?": "sinks/first-token-draws-attention",
        "By its place, or as a word?": "sinks/place-not-word",
        "Do sinks need softmax?": "sinks/sinks-need-softmax",
        "Does a learned sink, or a key of logit 0, remove them?": (
            "sinks/learned-sink-takes-over sinks/zero-sink-is-not-enough"
        ),
    },
}  # fmt: skip
"""By page: the first cell of a row, and the claims that the row puts into words."""

VERDICT = r"(holds as corrected|holds|only qualitative|mixed|not above its control|undecided|fails|not run)"


def verdict_cells(page):
    """(first cell, verdict, whether it is said to be fragile) of every row of the page that has a verdict."""
    for line in text_of(page).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for cell in cells[1:] if line.startswith("|") else ():
            if found := re.match(rf"{VERDICT}(?= \(|$|:| in )(.*)", cell):
                yield cells[0], found[1], "(fragile)" in found[2]
                break


@pytest.mark.parametrize("page", ROWS)
def test_verdicts_in_tables_are_those_of_the_records(page):
    seen = set()
    for row, verdict, fragile in verdict_cells(f"docs/results/{page}.md"):
        for claim in ROWS[page][row].split():
            kept = QUICK[claim] if row in seen else PAPER[claim]  # a second table is of quick scale
            assert (verdict, fragile or not kept["fragile"] or page == "rebound") == (kept["verdict"], True), row
        seen.add(row)
    assert seen == set(ROWS[page])


def test_no_other_page_has_a_table_of_verdicts():
    others = [page for page in PAGES if "/results/" in page and page.split("/")[-1].removesuffix(".md") not in ROWS]
    found = {page: rows for page in others if (rows := [row for row, *_ in verdict_cells(page)])}
    assert found == {}


NUMBER = r"[−-]?\d[\d,]*(?:\.\d+)?"
UNIT = r"(?: ?(?:%|nats|°|doublings of time|octaves|points))?"
OF_OTHER_RUNS = {
    "depth-width": ["0.223 ± 0.017"],
    "figure6": ["0.097 ± 0.010", "0.124 ± 0.044"],
    "figure8": ["0.36 [−0.51, 0.99]", "0.83 [0.32, 0.99]"],
    # of single texts and of the fourth corner: `test_what_galore_gains_by_text_and_by_corner` has them
    "galore-table": ["0.012 ± 0.005", "0.089 ± 0.014", "0.115 ± 0.036", "0.129 ± 0.278", "0.19 ± 0.17", "0.05 ± 0.31"],
    # of a branch that no claim is about, and at another step: `test_rises_in_the_second_of_two_layers` has them
    "why-attention-comes-back": ["−0.025 nats [−0.079, 0.029]", "0.08 nats [0.03, 0.14]"],
    "python-hierarchy": ["0.276 [0.243, 0.309]"],
}
"""Numbers that no finding has: of a text whose run is not kept, of one text alone, of another reading, of a figure."""
MADE_BY_SCRIPT = ("ablations", "reversal", "table1", "figure6")
"""Pages whose tables a script prints: what stands in one may be quoted in a sentence."""


def effects():
    """(value, low, high) of every effect, of every control, and of every difference."""
    for finding in PAPER.values():
        forms = (finding["evidence"] or {}).values()
        for one in chain.from_iterable(form["effects"].values() for form in forms if form):
            for name, ends in (("effect", "interval"), ("control_effect", "control_interval")):
                yield float(one[name]), *map(float, one[ends])
            yield float(one["difference"]), *map(float, one["difference_interval"])
        for case in finding["cases"].values():
            if isinstance(case, dict) and {"from", "to"} <= case.keys():
                (value,) = (case[name] for name in ("skill", "correlation") if name in case)
                yield value, case["from"], case["to"]
    for finding in QUICK.values():
        if finding["effect"] is not None:
            yield float(finding["effect"]), *map(float, finding["interval"])


KNOWN = [
    tuple(sorted((scale * low, scale * high))) + (scale * value,)
    for value, low, high in effects()
    for scale in (1, -1, 100, -100)
]


def rounds_to(number, written):
    digits = len(written.partition(".")[2])
    return abs(number - float(written.replace("−", "-").replace(",", ""))) <= 0.5000001 * 10**-digits


def is_known(written):
    """Whether some finding has this value with this interval, either way round, as a share or in percent."""
    if "±" in written:
        value, half = re.findall(NUMBER, written)
        return any(rounds_to(one, value) and rounds_to((high - low) / 2, half) for low, high, one in KNOWN)
    value, low, high = re.findall(NUMBER, written)
    return any(rounds_to(one, value) and rounds_to(a, low) and rounds_to(b, high) for a, b, one in KNOWN)


def intervals(page):
    """All intervals of a page's sentences; its tables are held by their scripts."""
    prose = " ".join(" ".join(line for line in text_of(page).splitlines() if not line.startswith("|")).split())
    return re.findall(rf"{NUMBER}{UNIT} \[{NUMBER}, {NUMBER}\]|(?<![\d.]){NUMBER} ± {NUMBER}", prose)


@pytest.mark.parametrize("page", PAGES)
def test_intervals_in_sentences_are_those_of_the_records(page):
    name = page.split("/")[-1].removesuffix(".md")
    rows = [line for line in built(page).splitlines() if line.startswith("|")] if name in MADE_BY_SCRIPT else []
    table = "".join(rows).replace("\N{NO-BREAK SPACE}", " ")
    unknown = [written for written in intervals(page) if not is_known(written) and f"{written} |" not in table]
    excused = OF_OTHER_RUNS.get(name, [])
    assert sorted(unknown) == sorted(excused)


def test_there_are_intervals_to_compare():
    assert sum(len(intervals(page)) for page in PAGES) > 100
    written = ("0.50 nats [0.33, 0.67]", "0.50 nats [0.32, 0.67]", "0.56 ± 0.05", "0.56 ± 0.06")
    assert [is_known(one) for one in written] == [True, False, True, False]


def test_what_galore_gains_by_text_and_by_corner():
    run = Run.open(ROOT / "results/galore-table/galore-table.sqlite")

    def ends(method, rate, seeds):
        """(seeds, texts)"""
        names = [f"long/{method}/{rate}/seed {seed}/held out" for seed in range(seeds)]
        return np.stack([run.value(name)[-1] for name in names])

    def half(differences):
        level = 0.99 if len(differences) <= 4 else 0.95
        error = differences.std(0, ddof=1) / len(differences) ** 0.5
        return scipy.stats.t.ppf((1 + level) / 2, len(differences) - 1) * error

    wiki, code = 0, 1
    page = " ".join(text_of("docs/results/galore-table.md").split())
    against = ends("GaLore", 0.005, 10) - ends("full rank, scaled", 0.005, 10)
    assert f"{-against[:, wiki].mean():.3f} ± {half(against)[wiki]:.3f} nats better on WikiText-2" in page
    assert f"{against[:, code].mean():.3f} ± {half(against)[code]:.3f} nats worse on Python source" in page
    random = ends("random projection", 0.005, 3) - ends("GaLore", 0.005, 3)
    assert f"it is {random[:, wiki].mean():.3f} ± {half(random)[wiki]:.3f} nats on WikiText-2" in page
    assert f"{random[:, code].mean():.3f} ± {half(random)[code]:.3f} on Python source" in page
    unscaled = ends("GaLore, unscaled", 0.005, 3).mean(1)
    gain, lag = ends("full rank", 0.001, 3).mean(1) - unscaled, unscaled - ends("GaLore", 0.005, 3).mean(1)
    assert f"{gain.mean():.2f} ± {half(gain):.2f} nats better than full rank with one rate" in page
    assert f"{lag.mean():.2f} ± {half(lag):.2f} worse than GaLore" in page
    lora = [ends("LoRA", rate, 3).mean(1) for rate in (0.002, 0.001)]
    assert f"({lora[0][2]:.2f} nats, the others {lora[0][0]:.2f} and {lora[0][1]:.2f};" in page
    assert f"{min(lora[1]):.2f} to {max(lora[1]):.2f})" in page


def test_rises_in_the_second_of_two_layers():
    """With parts frozen: their table, and what is said of step 10,000 and of the run that ends there."""
    page = " ".join(text_of("docs/explanation/why-attention-comes-back.md").split())

    def shown(rises, digits=2):
        half = scipy.stats.t.ppf(0.975, len(rises) - 1) * rises.std(ddof=1) / len(rises) ** 0.5
        ends = [f"{one:.{digits}f}" for one in (rises.mean(), rises.mean() - half, rises.mean() + half)]
        value, low, high = (one.replace("-0.00", "0.00").replace("-", "−") for one in ends)
        return value, f"[{low}, {high}]"

    def rise(run, frozen, last, layer=1):
        """From the lowest mean of the other seeds to the mean of the 3,000 steps before `last`, (seeds,)."""
        steps, entropy = run.steps("2 layers/valid/entropy"), run.array("2 layers/valid/entropy")[:, :, layer, 0]
        if frozen:
            twin = f"2 layers, {frozen} frozen/valid/entropy"
            entropy = np.concatenate([entropy[steps < 2000], run.array(twin)[:, :, layer, 0]])
            steps = np.concatenate([steps[steps < 2000], run.steps(twin)])
        low = [np.delete(entropy, seed, 1).mean(1).argmin() for seed in range(8)]
        near = (steps > last - 3000) & (steps <= last)
        later = [near & (np.arange(len(steps)) >= at) for at in low]
        return np.array([entropy[later[seed], seed].mean() - entropy[at, seed] for seed, at in enumerate(low)])

    with Run.open(ROOT / "results/need-or-delay/need-or-delay.sqlite") as run:
        parts = {"": "nothing", "QK": "queries and keys", "MLP": "MLPs", "embeddings": "embeddings",
                 "MLP and embeddings": "MLPs and embeddings", "output": "output matrix (control)"}  # fmt: skip
        for frozen, row in parts.items():
            (cells,) = re.findall(rf"\| {re.escape(row)} \|([^|]*)\|([^|]*)\|([^|]*)\|", page)
            assert cells[0].strip() == " ".join(shown(rise(run, frozen, 40_000, layer=0)))
            assert cells[2].strip() == " ".join(shown(rise(run, frozen, 40_000)))
        early = {frozen: shown(rise(run, frozen, 10_000)) for frozen in ("", "MLP", "MLP and embeddings")}
        assert "by step 10,000 it has risen by {} nats {}".format(*early["MLP"]) in page
        assert "with nothing frozen by {} {}".format(*early[""]) in page
        assert "not risen by step 10,000 ({} nats {})".format(*early["MLP and embeddings"]) in page
    with Run.open(ROOT / "results/rebound-cause/rebound-cause.sqlite") as run:
        twin = run.array("2 layers, embeddings frozen/valid/entropy")[:, :, 1, 0]
        assert "{} nats {} instead of 0.068".format(*shown(twin[-1] - twin[0], 3)) in page


def test_pairs_that_groups_need():
    """Where test accuracy crosses one half, by hand, and how far the pairs are from laws."""
    page = " ".join(text_of("docs/results/grokking.md").split())
    (names,) = re.findall(r"\| Group \|(.*?) \| \|---", page)
    (values,) = re.findall(r"in \$M\\ln M\$ \|(.*?) \| - ", page)
    pairs = {}
    with Run.open(ROOT / "results/grokking-law/grokking-law.sqlite") as run:
        factors, seeds = np.log(run.config["factors"]), run.config["seeds"]
        run_cyclic = run.config["cyclic"]
        for name in (*run_cyclic, *run.config["others"]):
            accuracy = run.array(f"{name}/read/test")[-1].reshape(-1, seeds)[: len(factors)]  # the last: shuffled
            first = (accuracy >= 0.5).argmax(0)
            low, high = accuracy[first - 1, np.arange(seeds)], accuracy[first, np.arange(seeds)]
            step = factors[first] - factors[first - 1]
            pairs[name] = 2.7482 * np.exp(factors[first - 1] + (0.5 - low) / (high - low) * step)
    for name, value in zip(names.split("|"), values.split("|"), strict=True):
        assert value.strip() == f"{pairs[name.strip().replace('×', 'x')].mean():.2f}"
    sizes = np.array([int(name[1:]) for name in run_cyclic])
    counts = np.array([pairs[name] for name in run_cyclic]) * (sizes * np.log(sizes))[:, None]
    off = [np.log(counts / (sizes**power)[:, None]).std(0, ddof=1).mean() for power in (1, 1.5, 2)]
    assert f"{off[1]:.3f} nats [" in page
    assert f"by {off[0]:.3f} from $M$ and by {off[2]:.3f} from $M^2$" in page
