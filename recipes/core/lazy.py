"""Names that a package gives without importing the modules behind them until one is asked for (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping, Sequence


def exports(package: str, names: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], object]]:
    """``__all__`` and ``__getattr__`` of a package.

    Args:
        package: its ``__name__``.
        names: module of the package -> what it gives.
    """
    homes = {name: module for module, given in names.items() for name in given}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return sorted(homes), get
