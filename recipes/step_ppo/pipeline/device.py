"""Where a stage computes that runs a model in its own process."""

from recipes.errors import EnvironmentProblem
from recipes.platforms import nvidia


def own_device() -> str:
    """torch's name of this machine's accelerator, `cpu` where there is none or it is hidden on purpose.

    Raises:
        EnvironmentProblem: there is a GPU that torch cannot use; the processor takes its place only when asked for.
    """
    import torch

    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    if driver := nvidia.nvidia_driver():
        raise EnvironmentProblem(
            f"this machine has NVIDIA devices ({driver}) and torch {torch.__version__} cannot use them: "
            f"{nvidia.why_unusable()}; mend that, or set CUDA_VISIBLE_DEVICES= to run on the processor"
        )
    return "cpu"
