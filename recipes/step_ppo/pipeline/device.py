"""Where a stage computes that runs a model in its own process."""

from recipes.core import nvidia
from recipes.errors import EnvironmentProblem


def own_device() -> str:
    """torch's name of this machine's accelerator, `cpu` where there is none or it is hidden on purpose.

    Raises:
        EnvironmentProblem: there is a GPU that torch cannot use; the processor takes its place only when asked for.
    """
    import torch

    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    if found := nvidia.unusable():
        raise EnvironmentProblem(f"{found}; mend that, or set CUDA_VISIBLE_DEVICES= to run on the processor")
    return "cpu"
