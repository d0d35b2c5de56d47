"""Whether attention entropy comes back because of what attention reads: its mean, its covariance, or words' logits.

Twins of Figure 6's language models go on from the valley with one of these held as it was there, and controls with a
push of the same size elsewhere (`holds`). What a twin lacks of its base's rise, from the valley to the end, is what the
held thing makes.

What was fixed when: everything, before any run at paper scale; the bounds are those of `dilution`. That study had held
words and mean by a push every 50 steps, without a gradient. The networks learned against it: it was off by 112 and
11 %. So here both are held in every batch, with the gradient through what holds them. The covariance was not held
before. The seeds, 65 to 69, had not been looked at. The valley, step 2,000, is that of `rebound-cause`.
"""

from joma.studies.rebound.reading.study import STUDY

__all__ = ["STUDY"]
