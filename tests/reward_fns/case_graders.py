"""A grader that the case table must catch."""


def accepts_all(data_source, solution_str, ground_truth):
    return 1.0
