"""A reward function of your own on top of ours: half credit for a wrong answer in the right form. Name it with
`pkg://` in a verl job.
"""

from reward_fns.format import one_final_box
from reward_fns.math import score
from reward_fns.result import Score, to_verl


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """1.0 for a right answer, 0.1 for a wrong one in a single final box, else 0.0; a sample that cannot be judged
    stays a Skip.
    """
    result = score(solution_str, ground_truth)
    if isinstance(result, Score) and result.value == 0.0 and one_final_box(solution_str).value:
        result = Score(0.1, result.reason, result.pred, acc=0.0, seconds=result.seconds)
    return to_verl(result)
