"""Reward functions as users write them, good and bad; the fault is asked for by the response."""

import os
import time

import numpy


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    fault = solution_str.partition(" ")[0]
    if fault == "raise":
        raise KeyError("no such thing")
    if fault == "hang":
        while True:
            time.sleep(0.01)
    if fault == "die":
        os._exit(3)
    if fault == "killed":
        os.kill(os.getpid(), 9)
    if fault == "balloon":
        return len(bytearray(8 << 30))
    if fault == "nan":
        return float("nan")
    if fault == "none":
        return None
    if fault == "numpy":
        return numpy.float32(0.5)
    if fault == "dict":
        return {"score": 1.0, "acc": True, "reason": "", "anything": object()}
    return float(solution_str == ground_truth) * kwargs.get("scale", 1.0)


async def compute_score_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    import asyncio

    if solution_str == "hang":
        await asyncio.sleep(3600)
    return compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs)
