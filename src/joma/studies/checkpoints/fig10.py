"""Figure 10: one MLP neuron fires on unrelated combinations of tokens.

The networks are trained here or given.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from joma.claims.contract import Claim, Drawing, Finding, NotRun, Progress, Study, StudyConfig
from joma.claims.guards import needs_device
from joma.claims.text_source import remember_source
from joma.claims.verdicts import by_effect, not_run
from joma.data.python_source import source_text
from joma.figures.labels import end_label, label_lines
from joma.figures.reading import number
from joma.figures.style import BLUE, CONTROL, GREEN, ORANGE, Axes, panels
from joma.host.extras import install_command
from joma.measure.intervals import compare
from joma.measure.superposition import Superposition, peaks, superposition
from joma.runs import Run
from joma.studies.checkpoints._seeds import UNLEARNED, learned, left_out, prefix

_PIECE = re.compile(r"\n *| ?[A-Za-z_]+| ?\d+| ?[^\sA-Za-z_\d]|\s")
_DOWN = re.compile(
    r"\d+\.(mlp\.(dense_4h_to_h|c_proj|down_proj|fc_out|fc2)|feed_forward\.w2|fc2|output\.dense|ffn\.lin2|linear2)$"
)
_RATE = 3e-3
_KEYS = 16  # most attended positions kept for every query
_TRAINING_SHARE = 0.8  # of the text; the rest is what the networks are read on
_SKIPPED = 0.25  # of a text at its beginning: queries there have no context to speak of
NETWORKS = ("trained", "untrained")
SPAN = 28  # tokens of a context that are printed, the query last
SHOWN = 3  # neurons whose contexts are printed
COMMAND = "joma run fig10 --model FOLDER --text FILE --seeds 1"


@dataclass(frozen=True)
class Fig10Config(StudyConfig):
    """A model and a text, or a small model trained on the spot on Python source.

    `steps`, `width`, `layers` and `vocabulary` are those of the small model; a given one brings its own.
    """

    model: str = ""
    """A model folder or hub name; without one, a small GPT-NeoX is trained first."""
    text: str = ""
    """A UTF-8 file; without one, the source of sympy."""
    characters: int = 1_000_000
    """How much of the text to read."""
    texts: int = 400
    """Windows on which neurons are looked at."""
    length: int = 40
    contexts: int = 20
    """Strongest contexts of each neuron."""
    batch: int = 8
    """Windows in a step of training, and read at once. Eight take two thirds of the time of sixteen; on six seeds from
    1000 on both gave the same verdicts."""
    steps: int = 150
    width: int = 64
    layers: int = 2
    vocabulary: int = 600
    device: str = "cpu"
    seeds: int = 6
    """Networks that are trained here, for an interval over seeds; a given model was trained once."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model and self.seeds != 1:
            raise ValueError(f"seeds must be 1 with a model, which was trained once, got {self.seeds}")


@dataclass(frozen=True)
class Material:
    """Two networks that differ in training alone, and the texts to read them on."""

    trained: nn.Module
    untrained: nn.Module
    tokens: Tensor  # (texts, length)
    words: list[list[str]]  # (texts, length) as the text has them, also where the network's vocabulary does not
    losses: list[float]


@dataclass(frozen=True)
class Layer:
    """What one layer's neurons and attention did on every text."""

    height: Tensor  # (texts, neurons) largest activation
    position: Tensor  # (texts, neurons) and where
    keys: Tensor  # (texts, length, m) most attended positions of every query
    weights: Tensor  # (texts, length, m) and their attention, averaged over heads


def run(config: Fig10Config, run: Run, progress: Progress) -> None:
    """Train or load, read each network and its untrained twin on the same texts, score every neuron."""
    if not config.text:
        remember_source(run)
    for place in range(config.seeds):

        def of_this(share: float, doing: str, place: int = place) -> None:
            progress((place + share) / config.seeds, doing if config.seeds == 1 else f"network {place + 1}: {doing}")

        _one_network(replace(config, seed=config.seed + place), run, prefix(place), of_this)


def _one_network(config: Fig10Config, run: Run, place: str, progress: Progress) -> None:
    @cache
    def material() -> Material:
        return prepare(config, progress)

    @cache
    def layers(network: str) -> list[Layer]:
        made, share = material(), 0.7 + 0.15 * NETWORKS.index(network)
        return read(
            getattr(made, network),
            made.tokens,
            batch=config.batch,
            progress=lambda done: progress(share + 0.15 * done, f"reading the {network} network"),
        )

    @cache
    def found(network: str) -> list[Superposition]:
        return [
            superposition(
                layer.height,
                layer.position,
                material().tokens,
                keys=layer.keys,
                weights=layer.weights,
                contexts=config.contexts,
                seed=config.seed,
            )
            for layer in layers(network)
        ]

    def joined(network: str, field: str) -> Callable[[], Tensor]:
        return lambda: torch.cat([getattr(layer, field) for layer in found(network)])

    @cache
    def shown() -> dict[str, Any]:
        return _shown(found("trained"), layers("trained"), material().words)

    run.keep(f"{place}losses", lambda: torch.tensor(material().losses, dtype=torch.float64))
    for network in NETWORKS:
        for field in ("score", "z", "patterns", "shuffled_score", "shuffled_patterns"):
            run.keep(f"{place}{network}/{field}", joined(network, field))
    if not place:  # a few neurons of the first network are enough to read
        for field in ("neuron", "group", "words", "weight"):
            run.keep(f"shown/{field}", partial(lambda field: shown()[field], field))


def _shown(found: list[Superposition], layers: list[Layer], words: list[list[str]]) -> dict[str, Any]:
    """The neurons whose second pattern is largest, with two contexts of each of their two largest patterns."""
    ranked = []
    for place, each in enumerate(found):
        for neuron in torch.nonzero(each.patterns >= 2)[:, 0].tolist():
            sizes = torch.bincount(each.group[neuron], minlength=each.group.shape[1])
            largest = sizes.argsort(descending=True, stable=True)[:2].tolist()
            ranked.append((-int(sizes[largest[1]]), place, neuron, largest))
    neurons, groups, text, weight = [], [], [], []
    for _, place, neuron, labels in sorted(ranked)[:SHOWN]:
        each, layer = found[place], layers[place]
        firsts = [torch.nonzero(each.group[neuron] == label)[:2, 0].tolist() for label in labels]
        members = [(g, c) for g, two in enumerate(firsts) for c in two]
        at = [(int(each.texts[neuron, c]), int(each.positions[neuron, c])) for _, c in members]
        neurons.append([place, neuron])
        groups.append([g for g, _ in members])
        text.append([words[t][max(0, p + 1 - SPAN) : p + 1] for t, p in at])
        weight.append(torch.stack([_attention(layer, t, p) for t, p in at]))
    return {
        "neuron": torch.tensor(neurons),
        "group": torch.tensor(groups),
        "words": np.frombuffer(json.dumps(text).encode(), dtype=np.uint8),
        "weight": torch.stack(weight) if weight else torch.zeros(0),
    }


def _attention(layer: Layer, text: int, position: int) -> Tensor:
    """(SPAN,) the attention of a query to the tokens up to itself, which comes last; 0 before the text begins."""
    all_keys = torch.zeros(SPAN + layer.keys.shape[1])
    all_keys.scatter_(0, SPAN + layer.keys[text, position], layer.weights[text, position])
    return all_keys[position + 1 : position + 1 + SPAN]


def prepare(config: Fig10Config, progress: Progress) -> Material:
    """The model that the config names, or a small one trained on the spot."""
    try:
        import transformers
    except ImportError:
        raise NotRun("transformers is not installed", f"{install_command('hf')} && joma verify fig10") from None
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # progress is ours to show
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return _given(config) if config.model else _trained_here(config, progress)
    finally:
        transformers.logging.set_verbosity(verbosity)


def read(model: Any, tokens: Tensor, *, batch: int, progress: Callable[[float], None]) -> list[Layer]:
    """Run `model` on every text and keep the peaks of its MLP neurons and the strongest attention, layer by layer."""
    down = [module for name, module in model.named_modules() if _DOWN.search(name)]
    hidden: dict[nn.Module, Tensor] = {}
    hooks = [module.register_forward_pre_hook(lambda m, x: hidden.__setitem__(m, x[0])) for module in down]
    before = model.config._attn_implementation
    parts: list[list[tuple[Tensor, ...]]] = []
    at = next(model.parameters()).device
    try:
        model.set_attn_implementation("eager")
        model.eval()
        for start in range(0, len(tokens), batch):
            ids = tokens[start : start + batch]
            with torch.inference_mode():
                attentions = model(input_ids=ids.to(at), output_attentions=True, use_cache=False).attentions
            if len(attentions or ()) != len(down) or len(hidden) != len(down):
                raise ValueError(
                    f"{type(model).__name__} shows {len(attentions or ())} attentions for {len(down)} MLPs: "
                    "its neurons cannot be paired with what they attend to"
                )
            pairs = zip(down, attentions, strict=True)
            parts.append([_layer(hidden[module], each, ids.shape) for module, each in pairs])
            progress((start + len(ids)) / len(tokens))
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)
    return [Layer(*(torch.cat(each) for each in zip(*layer, strict=True))) for layer in zip(*parts, strict=True)]


def _layer(hidden: Tensor, attention: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    skip = int(_SKIPPED * shape[1])
    height, position = peaks(hidden.float().view(*shape, -1)[:, skip:])
    strongest = attention.float().mean(1).topk(min(_KEYS, shape[1]), dim=-1)
    return height.cpu(), skip + position.cpu(), strongest.indices.cpu(), strongest.values.cpu()


def _trained_here(config: Fig10Config, progress: Progress) -> Material:
    import transformers

    words, ids = _numbered(_text(config), config.vocabulary)
    cut = int(len(ids) * _TRAINING_SHARE)
    layout = transformers.GPTNeoXConfig(
        vocab_size=config.vocabulary, hidden_size=config.width, num_hidden_layers=config.layers,
        num_attention_heads=4, intermediate_size=4 * config.width, hidden_act="relu",
        max_position_embeddings=config.length, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    untrained = transformers.GPTNeoXForCausalLM(layout)
    trained = transformers.GPTNeoXForCausalLM(layout)
    trained.load_state_dict(untrained.state_dict())
    needs_device(config.device, f"{COMMAND} --device cpu")
    losses = _train(trained.to(config.device), ids[:cut], config, progress)
    at = cut + _spread(len(ids) - cut, config)
    shown = [[words[i] for i in row] for row in at.tolist()]
    return Material(trained, untrained.to(config.device), ids[at], shown, losses)


@lru_cache(maxsize=1)  # the same for every seed
def _numbered(text: str, vocabulary: int) -> tuple[list[str], Tensor]:
    """Its words, and their numbers by frequency; 0 for the rare ones."""
    words = _PIECE.findall(text)
    common = [word for word, _ in Counter(words).most_common(vocabulary - 1)]
    number = {word: i + 1 for i, word in enumerate(common)}
    return words, torch.tensor([number.get(word, 0) for word in words])


def _train(model: Any, ids: Tensor, config: Fig10Config, progress: Progress) -> list[float]:
    generator = torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.01, fused=True)
    losses: list[float] = []
    model.train()
    for step in range(config.steps):
        starts = torch.randint(len(ids) - config.length, (config.batch, 1), generator=generator)
        batch = ids[starts + torch.arange(config.length)].to(config.device)
        for group in optimizer.param_groups:  # up over the first 20 steps, then down to nothing
            group["lr"] = _RATE * min((step + 1) / 20, 1 - step / config.steps)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0:
            progress(0.7 * step / config.steps, f"training, loss {losses[-1]:.2f}")
    return losses


def _given(config: Fig10Config) -> Material:
    """A model folder or hub name, beside the same architecture with random weights. Never runs code from there."""
    import transformers

    try:
        trained, info = transformers.AutoModelForCausalLM.from_pretrained(
            config.model, trust_remote_code=False, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise NotRun(f"{config.model} could not be read ({str(error).splitlines()[0]})", COMMAND) from None
    if lost := sorted(info["missing_keys"]):  # transformers makes them up, at random
        raise NotRun(f"the weights of {config.model} lack {lost[0]}", COMMAND)
    untrained = type(trained)(trained.config).to(trained.dtype)
    ids = torch.tensor(tokenizer(_text(config), verbose=False)["input_ids"])
    tokens = ids[_spread(len(ids), config)]
    piece = {i: tokenizer.decode([i]) for i in tokens.unique().tolist()}
    words = [[piece[i] for i in row] for row in tokens.tolist()]
    needs_device(config.device, f"{COMMAND} --device cpu")
    return Material(trained.to(config.device), untrained.to(config.device), tokens, words, [])


def _text(config: Fig10Config) -> str:
    if not config.text:
        return source_text(config.characters)
    try:
        return Path(config.text).read_text(encoding="utf-8")[: config.characters]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"text {config.text!r} could not be read as UTF-8: {error}") from None


def _spread(count: int, config: Fig10Config) -> Tensor:
    """(texts, length) indices of windows at equal distances; they must not overlap, or contexts would repeat."""
    step = count // config.texts
    if step < config.length:
        texts = f"{config.texts} texts of {config.length}"
        raise ValueError(f"{count} tokens do not hold {texts}: raise characters or lower texts")
    windows: Tensor = (step * torch.arange(config.texts))[:, None] + torch.arange(config.length)
    return windows


MARGIN = 0.05  # of all neurons: the smallest difference from a control that matters

_claim = partial(Claim, matters=MARGIN, unit="%", ceiling=1.0)
UNRELATED = _claim(
    "neurons-hold-unrelated-patterns",
    "JoMA Fig. 10",
    "One MLP neuron is switched on by several combinations of tokens that are unrelated to each other.",
)
LEARNED = _claim(
    "superposition-is-learned",
    "JoMA App. A.4",
    "Training makes a neuron hold several queries with their patterns.",
    uses=("fig10/neurons-hold-unrelated-patterns",),
)


def _more_neurons(claim: Claim, case: str, control: str, than: str, run: Run) -> Finding:
    """The share of neurons with two patterns or more, network by network, compared with the same in a control."""
    kept, expected = learned(run, "losses"), f"more neurons with two or more groups of related contexts than {than}"
    if not kept:
        return not_run(claim, expected, UNLEARNED, "joma verify fig10")

    def shares(series: str) -> list[float]:
        return [float((run.value(prefix(number) + series) >= 2).mean()) for number in kept]

    def alike(network: str) -> float:
        return -float(np.median([np.median(run.value(f"{prefix(number)}{network}/z")) for number in kept]))

    return by_effect(
        claim,
        {f"beside {case}": compare(shares("trained/patterns"), shares(control))},
        what="share of neurons that hold two or more patterns",
        expected=expected,
        details={
            "neurons": {"of each network": float(run.value("trained/patterns").size)},
            "contexts more alike than shuffled contexts, in standard deviations": {n: alike(n) for n in NETWORKS},
            **left_out(run, kept),
        },
    )


COLUMNS = 98  # characters in a printed line
COLOURS = {"trained": BLUE, "untrained": CONTROL, "shuffled contexts": ORANGE}
MOST = 5  # patterns of a neuron: those with more are counted with it


def _draw_scores(run: Run) -> Drawing:
    figure, (left, right) = panels(2, width=4.2)
    count = run.config["seeds"]

    def every(series: str) -> Any:
        return np.concatenate([run.value(prefix(number) + series) for number in range(count)])

    z = {network: every(f"{network}/z") for network in NETWORKS}
    both = np.concatenate(list(z.values()))
    bins = np.linspace(min(both.min(), -3.0), max(both.max(), 3.0), 40)
    for network, values in z.items():
        share = 100 * np.histogram(values, bins)[0] / len(values)
        left.step(bins, [*share, 0.0], where="post", color=COLOURS[network], label=network)
    left.axvline(0, ls="--", lw=1, color=ORANGE, label="shuffled\ncontexts: 0")
    left.set(xlabel="z of 1 − mean cosine between contexts", ylabel="neurons (%)", ylim=(0, None))
    left.set_title("A neuron's contexts are related: z < 0")
    patterns = {n: every(f"{n}/patterns") for n in NETWORKS}
    patterns["shuffled contexts"] = every("trained/shuffled_patterns")
    most = min(max(int(values.max()) for values in patterns.values()), MOST)
    for i, (name, values) in enumerate(patterns.items()):
        height = [100 * float((np.minimum(values, most) == n).mean()) for n in range(most + 1)]
        right.bar(np.arange(most + 1) + 0.27 * (i - 1), height, 0.25, color=COLOURS[name], label=name)
        end_label(right, name.replace(" ", "\n"), color=COLOURS[name], lw=4)
    right.set_xticks(range(most + 1), [f"{n}+" if n == most == MOST else str(n) for n in range(most + 1)])
    right.set(xlabel="unrelated patterns of one neuron", ylabel="neurons (%)", title="Number of patterns per neuron")
    for axis in (left, right):
        label_lines(axis)
    two = {name: number(float((values >= 2).mean()), "%") for name, values in patterns.items()}
    caption = (
        f"{two['trained']} of the neurons hold two or more unrelated patterns after training. The share is "
        f"{two['untrained']} before training and {two['shuffled contexts']} with contexts shuffled between neurons. "
        "Left: how alike the strongest contexts of a neuron are, in standard deviations from shuffled contexts. "
        f"Right: groups of at least three related contexts per neuron. All neurons of {count} "
        f"network{'s' if count > 1 else ''} are counted."
    )
    return Drawing("unrelated-contexts", caption, figure)


def _draw_contexts(run: Run) -> Drawing:
    neurons, groups, weight = (run.value(f"shown/{name}") for name in ("neuron", "group", "weight"))
    words = json.loads(run.value("shown/words").tobytes().decode())
    lines = len(neurons) * (groups.shape[1] + 1.5) - 0.5
    figure, (axis,) = panels(width=7.4, height=0.17 * lines + 0.1)
    axis.set(xlim=(-4, COLUMNS + 1), ylim=(lines - 0.2, -0.8))
    axis.axis("off")
    row = 0.0
    for i, (layer, neuron) in enumerate(neurons):
        axis.text(-4, row, f"Layer {layer + 1}, neuron {neuron}", fontsize=8.5, fontweight="bold", va="center")
        row += 1
        for j, group in enumerate(groups[i]):
            axis.text(-3.5, row, "AB"[group], fontsize=8.5, va="center", color=(BLUE, GREEN)[group])
            _write_context(axis, row, words[i][j], weight[i, j][SPAN - len(words[i][j]) :])
            row += 1
        row += 0.5
    caption = (
        f"One neuron fires on unrelated contexts: here are {len(neurons)} neurons of the first trained network, each "
        "with contexts from two of its patterns, A and B. The last token, underlined, is the query. The three tokens "
        "that it attends to most are bold."
    )
    return Drawing("pattern-superposition", caption, figure, _contexts_alt(neurons, groups, words))


def _contexts_alt(neurons: Any, groups: Any, words: Any) -> str:
    parts = []
    for (layer, neuron), own, contexts in zip(neurons, groups, words, strict=True):
        # in quotation marks: a token may be a word of the sentence, too
        ends = [f"“{w}”" if (w := context[-1].strip()) else "a space or a line's end" for context in contexts]
        of = [" and ".join(end for end, g in zip(ends, own, strict=True) if g == group) for group in range(2)]
        parts.append(f"Layer {layer + 1}, neuron {neuron}: pattern A ends with {of[0]}; pattern B ends with {of[1]}.")
    return f"Lines of source text for {len(neurons)} neurons. {' '.join(parts)}"


def _write_context(axis: Axes, row: float, words: list[str], weight: Any) -> None:
    """One line of text that ends with the query, cut at its left to the width of the figure."""
    bold = {i for i in np.argsort(-weight)[:3] if weight[i] > 0}
    shown = [_visible(word) for word in words]
    while sum(map(len, shown)) > COLUMNS:
        shown = shown[1:]
    column = 0
    for i, word in enumerate(shown, start=len(words) - len(shown)):
        style: dict[str, Any] = {"fontweight": "bold"} if i in bold else {"alpha": 0.75}
        text = axis.text(column, row, word, family="monospace", fontsize=8, va="center", parse_math=False, **style)
        if i == len(words) - 1:
            axis.plot([column, column + len(word)], [row + 0.45] * 2, lw=1, color=text.get_color())
        column += len(word)


def _visible(word: str) -> str:
    """A token on one line: a mark for a line's end, one column for anything that does not print.

    Spaces do not break: a picture's text would lose them at its ends.
    """
    shown = "".join("↵" if c == "\n" else c if c.isprintable() else "·" for c in word.replace("    ", " "))
    return shown.replace(" ", "\N{NO-BREAK SPACE}")


STUDY = Study(
    name="fig10",
    title="Figure 10: pattern superposition in MLP neurons",
    version=2,
    claims={
        claim: partial(_more_neurons, claim, case, control, than)
        for claim, case, control, than in (
            (UNRELATED, "contexts shuffled between neurons", "trained/shuffled_patterns", "with shuffled contexts"),
            (LEARNED, "the untrained network", "untrained/patterns", "before training"),
        )
    },
    quick=Fig10Config(),
    paper=Fig10Config(
        characters=10_000_000, texts=3000, length=128, batch=64, steps=2000, width=256, layers=4, vocabulary=8000,
        device="cuda", seeds=8,
    ),
    run=run,
    draw=lambda run: [_draw_scores(run), *([_draw_contexts(run)] if len(run.value("shown/neuron")) else [])],
    about=(
        "For every MLP neuron, the 20 contexts that switch it on most are taken, each from another text. A context is "
        "described by a tf-idf vector of the tokens that its query attends to. Two contexts are related when they are "
        "closer than 99 % of the pairs from different neurons. Three or more contexts that are connected by triangles "
        "of related pairs form a pattern. A neuron with two patterns fires on unrelated combinations of tokens. There "
        "are two controls: contexts shuffled between neurons, and the same network before training. Shares of neurons "
        "are compared over networks of several seeds. A single given model has no interval, so its findings are "
        "undecided."
    ),
)  # fmt: skip
