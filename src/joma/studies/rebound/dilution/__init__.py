"""What makes attention entropy come back: logits that shrink, or only the preference that all queries share?

Twins of Figure 6's language models go on from the valley with one of these sizes held as it was there, and controls
with a push of the same size elsewhere (`holds`). What a twin lacks of its base's rise, from the valley to the end, is
what the held thing makes.

What was fixed when: everything, before any run at paper scale. A sketch on other seeds (0, 1, 3 to 7) had rescaled
logits of finished networks, and found 79 to 121 % of the rise gone with both sizes, 31 to 89 % with the shared one
alone; no twin had been trained. The valley, step 2,000, is that of `rebound-cause`. The seeds here, 60 to 64, had not
been looked at. "Makes the rebound" needs 60 % of the rise removed and less than 20 % by the control. The kept record
has two more twins, words and mean, from when this study held them too.
"""

from joma.studies.rebound.dilution.study import STUDY

__all__ = ["STUDY"]
