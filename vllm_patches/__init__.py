"""Out-of-tree additions to vLLM: tandem decoding, and CPU weights that can be reloaded in place.

Installing the package changes nothing for engines without tandem decoding: the entry point adds a read-only property to
``CompletionOutput``; engines whose ``additional_config`` holds a ``tandem`` section stay on the V1 model runner and
have each request checked in the front end; and on a CPU, only under ``VERL_DUETS_CPU=1``, it keeps linear weights where
a trainer can write them.
"""

from __future__ import annotations

import logging
import os

CPU_SWITCH = "VERL_DUETS_CPU"

logger = logging.getLogger(f"vllm.{__name__}")


def register() -> None:
    """Entry point of group ``vllm.general_plugins``; vLLM calls it in the front end, the engine core and every worker.

    Safe to call any number of times.

    Raises:
        vllm_patches.guard.UnsupportedVllmError: ``VERL_DUETS_CPU=1`` asks for the CPU patch, which does not support
            this vLLM. Without the switch an unsupported vLLM is left alone; a tandem engine refuses it.
    """
    from vllm_patches import guard

    if guard.problems("plugin"):
        logger.debug("vLLM is not one that vllm_patches supports; nothing registered: %s", guard.problems("plugin"))
    else:
        from vllm_patches.tandem import frontend

        frontend.add_authorship_property()
        frontend.choose_runner()
        frontend.check_requests()

    if os.environ.get(CPU_SWITCH) == "1":
        from vllm_patches import cpu_linear

        cpu_linear.keep_weights_in_place()
