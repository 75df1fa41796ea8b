"""Adam's numbers per step: apart from the gradient they depend on the step alone, and are computed once per round.

Rows of a first layer whose features a batch does not carry have a zero gradient. Then a step only shrinks m by β1 and
v by β2, and moves w by pace(s) · (β1 / √β2)^j · m / (√v + ε'), with j the steps since the last gradient. Only ε'
depends on s; taken as at the first of these steps, what a stretch of them does is one number for the whole row, exact
for ε = 0. So such rows need not be touched at every step: they are caught up when they are next used.
"""

import numpy as np

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
#: Rows of the schedule.
PACE, TAIL, FADE1, FADE2, REACH = range(5)


def make_schedule(steps: int, learning_rate: float, *, adam: bool) -> np.ndarray:
    """Compute the numbers for step s, or for s steps.  # [5, steps + 2]

    PACE: lr · √(1 − β2^s) / (1 − β1^s), how far step s moves a parameter for each m / √v (plain SGD: lr).
    TAIL: how far all steps after s together move a parameter that gets no further gradient, for each m / √v at s.
    FADE1, FADE2, REACH: β1^s, β2^s and (β1 / √β2)^s.
    """
    s = np.arange(steps + 2)
    ratio = BETA1 / np.sqrt(BETA2)
    schedule = np.zeros((5, steps + 2))
    schedule[FADE1], schedule[FADE2], schedule[REACH] = BETA1**s, BETA2**s, ratio**s
    schedule[PACE] = learning_rate
    if adam:
        schedule[PACE, 1:] *= np.sqrt(1 - schedule[FADE2, 1:]) / (1 - schedule[FADE1, 1:])
    for step in range(steps, -1, -1):
        schedule[TAIL, step] = ratio * (schedule[PACE, step + 1] + schedule[TAIL, step + 1])
    return schedule
