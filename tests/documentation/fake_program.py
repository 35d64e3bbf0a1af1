"""Stands for python, torchrun and accelerate while a launcher runs: writes down how it was called."""

import json
import os
import sys

program, *arguments = sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as log:
    call = {"program": program, "arguments": arguments, "environment": dict(os.environ)}
    log.write(json.dumps(call) + "\n")
