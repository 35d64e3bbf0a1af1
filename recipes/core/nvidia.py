"""NVIDIA devices of this machine, whether torch can use them or not."""

import os
import re
from pathlib import Path


def nvidia_driver(proc: Path = Path("/proc/driver/nvidia/version"), dev: Path = Path("/dev")) -> str | None:
    """The driver of the NVIDIA devices of this machine; None without devices, or where they are hidden on purpose."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not any(dev.glob("nvidia[0-9]*")):
        return None
    version = re.search(r"\d+\.\d+(\.\d+)?", proc.read_text()) if proc.is_file() else None
    return f"driver {version[0]}" if version else "driver unknown"


def unusable() -> str | None:
    """That, and why, torch cannot use the devices of this machine where it finds none; None without devices."""
    import torch

    driver = nvidia_driver()
    if driver is None:
        return None
    return f"this machine has NVIDIA devices ({driver}) and torch {torch.__version__} cannot use them: {cuda_problem()}"


def cuda_problem() -> str:
    """Why torch cannot use them, in its own words where it has any."""
    import torch

    if torch.version.cuda is None:
        return "it is built for the processor alone"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return f"it is built for CUDA {torch.version.cuda} and finds no device"
