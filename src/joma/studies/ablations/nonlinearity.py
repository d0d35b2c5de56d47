"""Is it the MLP's nonlinearity that makes attention rebound? ReLU against GELU, the identity, and no MLP at all."""

from joma.claims.contract import Claim, Finding, Study
from joma.claims.guards import beyond
from joma.claims.verdicts import by_effect
from joma.measure.intervals import compare
from joma.recipes.language import same_text
from joma.runs import Run
from joma.studies.ablations import _twins as twins
from joma.studies.ablations._figures import draws
from joma.studies.ablations._twins import MATTERS, AblationConfig

VARIANTS = {
    "ReLU": twins.as_it_is,
    "GELU": lambda base: base.with_decoder(activation="gelu"),
    "identity": lambda base: base.with_decoder(activation="identity"),
    "no MLP": lambda base: base.with_decoder(mlp=0, activation="identity"),
}

REBOUND = twins.in_nats(
    "rebound-needs-nonlinearity",
    "JoMA Sec. 5",
    "Attention entropy rebounds because the MLP is nonlinear. With a linear MLP it would not rebound.",
    uses=("eq6/only-nonlinear-rebounds",),
)
LINEAR = Claim(
    "linear-mlp-stays-sparse",
    "JoMA Thm 2",
    "With a linear MLP, attention becomes sparse during training and does not become dense again.",
    matters=MATTERS / 2,  # below a rebound of MATTERS by so much: nearer to none than to one that matters
    unit="nats",
    uses=("thm2/one-hot",),
)
GELU = twins.in_nats(
    "rebound-with-gelu",
    "JoMA Sec. 4",
    "With a nonlinear activation, attention becomes sparse and then dense. Tested here: GELU, which is not "
    "homogeneous.",
)
DROP_OF_MLP = twins.in_nats(
    "drop-needs-mlp",
    "JoMA Thm 1",
    "Attention logits follow from the weights of the MLP above. Tested here: does the drop in entropy need the MLP?",
    uses=("thm1-softmax/softmax-published",),
)
REBOUND_OF_MLP = twins.in_nats(
    "rebound-needs-mlp",
    "JoMA eq. 6",
    "Attention entropy rebounds when the less salient weights of the MLP above it catch up.",
    uses=("eq6/entropy-rebounds",),
)


def _linear(run: Run) -> Finding:
    """Is the rebound of the linear network below one that matters, while it drops and ReLU does rebound?

    The effect is the rebound with its sign turned, so that more of it is what the claim says; the control is the
    smallest rebound that matters. A linear network that rebounds beyond it, by more than chance, refutes the claim.
    """
    expected = (
        f"in every layer, the linear network has a drop and a rebound that stays below {MATTERS:g} nats (both 99 %); "
        "the ReLU network has a rebound"
    )
    if finding := twins.cannot_tell(LINEAR, run, expected, "identity", "ReLU"):
        return finding
    needed = {
        "drop with identity": twins.by_layer(run, "identity", "drop", level=0.99),
        "rebound with ReLU": twins.by_layer(run, "ReLU", "rebound", level=0.99),
    }
    turned = -twins.shape_of(run, "identity").rebound
    return by_effect(
        LINEAR,
        {f"layer {i}": compare(layer, -MATTERS, level=0.99) for i, layer in enumerate(turned, start=1)},
        expected=expected,
        what="minus the rebound with identity",
        controls=[
            beyond(REBOUND, f"{layer}: {what}", found)
            for what, layers in needed.items()
            for layer, found in layers.items()
        ],
        details=twins.numbers(run, "identity", "ReLU"),
    )


STUDY = Study(
    name="nonlinearity",
    title="Ablation: does the nonlinearity make attention rebound?",
    version=2,
    claims={
        REBOUND: lambda run: twins.needs(REBOUND, run, part="rebound", full="ReLU", without="identity"),
        LINEAR: _linear,
        GELU: lambda run: twins.shows(GELU, run, variant="GELU", twin="ReLU"),
        DROP_OF_MLP: lambda run: twins.needs(DROP_OF_MLP, run, part="drop", full="ReLU", without="no MLP"),
        REBOUND_OF_MLP: lambda run: twins.needs(REBOUND_OF_MLP, run, part="rebound", full="ReLU", without="no MLP"),
    },
    quick=AblationConfig(**twins.AT_QUICK_SCALE),
    paper=AblationConfig(**twins.AT_PAPER_SCALE),
    run=twins.trains(VARIANTS),
    draw=draws(VARIANTS, "nonlinearity"),
    check=same_text,
    about=(
        "Figure 6's language model is trained in four variants: with ReLU, with GELU, with no activation (identity), "
        "and without MLPs. All variants read the same text and start from the same seeds. The rebound needs the "
        "nonlinearity only if two things are true in every layer: the rebound with ReLU is larger than with the "
        "identity, seed by seed, and the identity has no rebound."
    ),
)
