"""A reward function whose module maps address space as it is imported, as CUDA's libraries do; no memory is used.

The response `balloon` wants memory. The score of another is the number of the process.
"""

import mmap
import os

MAPPED = mmap.mmap(-1, 3 << 30)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(len(bytearray(8 << 30)) if solution_str == "balloon" else os.getpid())
