"""Replace code of verl in this process: as soon as verl imports it, and only where it looks as the lock file says."""

import traceback
from collections.abc import Callable
from types import ModuleType

import wrapt

from recipes.core import compat, own_log


def patch_when_imported(module: str, used_by: str, patch: Callable[[ModuleType], None]) -> None:
    """Apply a patch to a module of verl as soon as it is imported, after checking what the lock knows of it.

    What goes wrong is kept in :mod:`recipes.core.own_log`, because verl hides what a plug-in raises.

    Args:
        used_by: the file of the lock whose symbols of this module are checked.
    """

    def checked(imported: ModuleType) -> None:
        try:
            compat.require(used_by, module=module)
            patch(imported)
        except Exception:
            own_log.messages.append(traceback.format_exc())

    wrapt.when_imported(module)(checked)
