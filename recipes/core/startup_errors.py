"""Errors met while the plug-in loads, kept because verl hides what a plug-in raises.

A leaf: the plug-in, the CPU platform and the patches of verl write here; the doctor and the launcher read.
"""

messages: list[str] = []
"""Tracebacks of this process, in order."""
