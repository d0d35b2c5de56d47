"""The claims of `reversal-decoder`, and which effects matter, stated before the run."""

from functools import partial

from joma.claims.claim import Claim

GAP = 0.5  # of a probability: a curse is a gap of half of all answers
GAIN = 0.05  # of a probability: a cure that answers fewer than one reverse in twenty is none
CURED = 0.5  # of a probability: half of all reverses
ORDER = 0.1  # of rivals beaten; 0.5 is chance, 1 the most
NEARER = 0.25  # of rivals beaten: half of the way from chance to all
MORE_LOSS = 0.5  # nats of loss: a factor 1.6 in the odds
NATS = 1.0  # of a logit: a factor e in the odds
SHARE = 0.1  # of asymmetry, from 0 to 1
SPREAD = 0.5  # of the standard deviation of attention logits

_curse = partial(Claim, source="Reversal Thm 3", matters=GAP, unit="%")
_trace = partial(Claim, source="Reversal Thm 3", matters=ORDER, unit="%", ceiling=1.0)
_cure = partial(Claim, source="Reversal Thm 3", matters=GAIN, unit="%", ceiling=1.0)

CURSE = _curse(
    "reverse-no-better-than-uniform",
    says="A decoder that answers A -> B almost perfectly answers the untrained B <- A no better than a uniform guess.",
    uses=("reversal/reverse-is-a-guess",),
)
LOSS = Claim(
    "reverse-loss-above-uniform",
    "Reversal Thm 3",
    "The probability of an untrained reverse is at most uniform: its loss is above that of a uniform guess.",
    matters=MORE_LOSS,
    unit="nats",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
"""Added when the first record at paper scale had been seen: there a few reverses are known and lift the mean
probability, while the mean loss is far above uniform."""
DEPTHS = _curse(
    "curse-at-every-depth",
    says="The theorem is about one layer. Tested here: is there a curse at every depth?",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
FROZEN = _curse(
    "curse-with-frozen-embeddings",
    says="The theorem takes embeddings as fixed. Tested here: is there a curse with frozen embeddings?",
)
ENTITIES = _curse(
    "curse-with-long-entities",
    says="The theorem takes an entity as one token. Tested here: is there a curse with entities of several tokens?",
)
TRACE = Claim(
    "no-trace-of-the-reverse",
    "JoMA talk slide Reversal",
    "You only learn what you see in the training set: the right reverse is ranked no higher than the reverses of other "
    "facts.",
    matters=NEARER,
    unit="%",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
OTHERS = _trace(
    "other-pairs-both-ways",
    says="Whatever else is trained, an untrained reverse stays unlikely. Tested here: does training other pairs in "
    "both directions teach a decoder to reverse?",
)
SHARED = _trace(
    "trace-needs-shared-embeddings",
    says="The theorem has no embeddings. Tested here: is a trace of the reverse carried by learned embeddings that "
    "input and output share?",
    uses=("reversal-decoder/no-trace-of-the-reverse",),
)
RATE = _trace(
    "trace-grows-with-the-rate",
    says="The theorem is about a small learning rate. Tested here: does a larger rate, as in the authors' experiment, "
    "leave more of a trace?",
    uses=("reversal-decoder/no-trace-of-the-reverse",),
)
LONGER = _curse(
    "longer-training-does-not-help",
    says="At all later times the reverse stays at the uniform guess: the curse is there after longer training.",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
OWN = _cure(
    "reversed-statements",
    says="A statement that is trained is answered: the reverse is known where it is taught itself.",
)
IDENTITY = _cure(
    "identity-statements",
    says="Only trained statements are learned. Tested here: do statements 'A is A' let a decoder answer untrained "
    "reverses?",
)
BACKWARDS = _cure(
    "text-read-backwards",
    says="Only the trained direction is learned. Tested here: is the curse cured by training text that is read "
    "backwards?",
)
ANY = _cure(
    "any-order-objective",
    says="The theorem is about predicting what follows. Tested here: is the curse cured by filling in either entity?",
)
LOGITS = Claim(
    "next-token-logits",
    "Reversal Thm 3",
    "Training A -> B raises the logit of B after A and leaves that of A after B where it was.",
    matters=NATS,
    unit="nats",
    uses=("reversal-decoder/reverse-no-better-than-uniform",),
)
SYMMETRY = Claim(
    "attention-not-symmetric",
    "JoMA talk slide Reversal",
    "The curse is explained by attention logits between tokens, which training makes asymmetric.",
    matters=SHARE,
    ceiling=1.0,
)
ATTENTION = Claim(
    "attention-follows-facts",
    "JoMA talk slide Reversal",
    "Attention logits between the entities of a fact differ by its direction: A looks at B as B does not look at A.",
    matters=SPREAD,
    unit="standard deviations",
    uses=("reversal-decoder/attention-not-symmetric",),
)
