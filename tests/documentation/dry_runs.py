"""Dry-run recipes, one fork each of a process that has imported what they share: `dry_runs.py IN.json OUT.jsonl`."""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback

from recipes.launch import cluster

# verl decides at its import by what the launcher puts into the environment.
cluster.set_environment(cluster.choose_device([], None))
import verl.trainer.main_ppo  # noqa: E402, F401

KEEP = ("PATH", "PYTHONPATH")


def dry_run(arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of `python -m recipes.NAME.main ... --dry-run`."""
    os.environ.update({name: value for name, value in environment.items() if name not in KEEP})
    output = io.StringIO()
    sys.argv = [arguments[1], *arguments[2:], "--dry-run"]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
    return code or 0, output.getvalue()


def answer(call: dict) -> str:
    """One line of the result."""
    code, output = dry_run(call["arguments"], call["environment"])
    return json.dumps({"command": call["command"], "code": code, "output": output[-4000:]}) + "\n"


calls = json.load(open(sys.argv[1]))
with open(sys.argv[2], "w") as log:
    # The first runs here, so that what it imports is there for all others.
    log.write(answer(calls[0]))
    for call in calls[1:]:
        log.flush()
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(read)
            with os.fdopen(write, "w") as end:
                end.write(answer(call))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as end:
            log.write(end.read())
        os.wait()
