"""The claims about the hypercube and about random labels, and from which size on an effect counts."""

from functools import partial

from joma.claims.contract import Claim

POINTS = 0.02  # of accuracy: a classifier two points better is worth choosing
NATS = 0.02  # of contrastive loss: a fifth of the printed gap between linear and MLP
FITTED = 0.05  # of accuracy: a network that fits five points more than a linear classifier has memorised
GENERALISES = 0.1  # of accuracy: as much as chance itself
EPOCHS = 1.0  # a difference of less than an epoch is not longer

table_claim = partial(Claim, source="Saunshi et al. Table 1")
accuracy_claim = partial(table_claim, matters=POINTS, unit="%", ceiling=1.0)
fit_claim = partial(Claim, matters=FITTED, unit="%", ceiling=1.0)
test_claim = partial(Claim, matters=GENERALISES, unit="%", ceiling=1.0)

EQUAL = table_claim(
    "equal-contrastive-loss", says="A perfect and a spurious representation have the same contrastive loss."
)
UNEQUAL = Claim(
    "unequal-accuracy",
    "Saunshi et al. Table 1",
    "On top of the perfect representation a linear classifier is always right, on top of the spurious one it guesses.",
)
LOSS_VALUE = table_claim("printed-loss", says="The contrastive loss of the perfect representation is 4.939 nats.")
SOLVES = accuracy_claim(
    "linear-solves-the-task",
    says="A linear representation learned by contrast with SGD solves the downstream task, at 99.5 %.",
)
LOSSES = Claim(
    "mlp-has-the-lower-loss",
    "Saunshi et al. Table 1",
    "An MLP trained with Adam reaches a lower contrastive loss than the linear representation (5.039 against 5.134).",
    matters=NATS,
    unit="nats",
)
ACCURACIES = accuracy_claim(
    "linear-has-the-higher-accuracy",
    says="Yet the linear representation has the higher downstream accuracy (99.5 % against 74.1 %).",
    uses=("inductive-bias/mlp-has-the-lower-loss",),
)
HELPS = accuracy_claim(
    "weight-decay-helps",
    says="Weight decay raises the downstream accuracy of the MLP (89.5 % against 74.1 %) at the same contrastive loss.",
)
SAME_LOSS = accuracy_claim(
    "loss-does-not-decide",
    says="At the same contrastive loss the linear representation has a higher downstream accuracy than the MLP.",
)
FITS = fit_claim(
    "fits-random-labels",
    "Zhang et al. Table 1",
    "Networks fit random labels: MLPs with three and with one hidden layer reach 100 % and 99.34 % in training.",
)
NO_TRUTH = test_claim(
    "random-labels-do-not-generalise",
    "Zhang et al. Table 1",
    "After that the test accuracy is chance (10.5 %): the same network generalises or not, depending on the labels.",
    uses=("inductive-bias/fits-random-labels",),
)
WITHOUT = test_claim(
    "generalises-without-weight-decay",
    "Zhang et al. Table 1",
    "Weight decay is not why networks generalise: without it the test accuracy is about the same (52.4 % and 53.4 %).",
)
NOT_STOPPED = fit_claim(
    "weight-decay-does-not-stop-it", "Zhang et al. Sec. 3", "Networks fit random labels with weight decay too."
)
LONGER = Claim(
    "small-factor-longer",
    "Zhang et al. Fig. 1",
    "Fitting random labels takes longer than fitting true ones, by a small constant factor only.",
    matters=EPOCHS,
    unit="epochs",
)
NOISE = fit_claim(
    "fits-images-of-noise",
    "Zhang et al. Fig. 1",
    "Networks fit true labels of shuffled pixels, of random pixels and of Gaussian noise as well.",
)
