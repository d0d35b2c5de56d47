"""The study `reversal-decoder`: its claims, its two sizes, and what it says of itself."""

from functools import partial

from joma.claims.contract import Study
from joma.studies.reversal._decoders import LEARNED, PAPER, train_conditions
from joma.studies.reversal.reversal_decoder import claims as c
from joma.studies.reversal.reversal_decoder import judge
from joma.studies.reversal.reversal_decoder.figures import draw
from joma.studies.reversal.reversal_decoder.run import BASE, FactNetworks, ReversalDecoderConfig, conditions

STUDY = Study(
    name="reversal-decoder",
    title="The reversal curse in decoders, and what cures it",
    version=1,
    claims={
        c.CURSE: partial(judge.curse, c.CURSE, lambda scores: scores.at(BASE, [max(scores.depths)])),
        c.LOSS: judge.loss,
        c.DEPTHS: partial(judge.curse, c.DEPTHS, lambda scores: scores.at(BASE, scores.depths)),
        c.FROZEN: partial(judge.curse, c.FROZEN, lambda scores: scores.at("frozen", scores.cured)),
        c.ENTITIES: partial(judge.curse, c.ENTITIES, judge.long_entities),
        c.LONGER: partial(judge.curse, c.LONGER, judge.trained_longer),
        c.TRACE: judge.trace,
        c.OTHERS: judge.other_pairs,
        c.SHARED: judge.shared_embeddings,
        c.RATE: judge.learning_rate,
        c.OWN: judge.own_reverses,
        c.IDENTITY: partial(judge.cure, c.IDENTITY, "identities", ("other identities",)),
        c.BACKWARDS: partial(judge.cure, c.BACKWARDS, "read backwards", ()),
        c.ANY: partial(judge.cure, c.ANY, "any order", ("fill the end",)),
        c.LOGITS: judge.logits,
        c.SYMMETRY: judge.symmetry,
        c.ATTENTION: judge.attention,
    },
    quick=ReversalDecoderConfig(),
    paper=ReversalDecoderConfig(**PAPER, pairs=200, cured=(1, 4), slower=(0.003, 0.001, 0.0003), long=16_000),
    run=partial(train_conditions, conditions, FactNetworks),
    draw=draw,
    about=(
        "Decoders of GPT-2's shape are taught facts A -> B and their reverses B <- A. 70 % of the pairs are taught in "
        "both directions, of the others one direction is taught and its reverse is asked. The loss is on the last "
        f"entity. A network counts if it answers at least {LEARNED:.0%} of what it was taught. The reverse stands "
        "beside the uniform guess, beside the answers to other reverses and beside facts that were never seen. Ranks "
        "compare the right reverse only with answers to questions of the same relation, because all of these were "
        "never an answer in training. Every network has facts of its own."
    ),
)
