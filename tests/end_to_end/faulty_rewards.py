"""A reward function that fails one sample in ten, in four ways, by a hash of the response."""

import os
import time
import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    draw = zlib.crc32(f"{extra_info['index']} {solution_str}".encode()) % 40
    if draw == 0:
        raise RuntimeError("this sample cannot be judged")
    if draw == 1:
        time.sleep(3600)
    if draw == 2:
        return float("nan")
    if draw == 3:
        os._exit(7)
    return float(f"\\boxed{{{ground_truth}}}" in solution_str)


def always_raises(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    raise ConnectionError("the endpoint is down")
