"""The standard library's forkserver against ours: `python tests/tools/fork_server_figures.py`.

Prints, for each, the seconds to the first answer (the import of math-verify included), the milliseconds to an answer
from a worker that replaces a killed one, the memory that a worker adds (Pss), and how long processes outlive a parent
that is killed by SIGKILL while they work.
"""

import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
KILLS = 15


def serve(connection):
    """A worker of the standard library's kind: squares what it is sent."""
    while True:
        connection.send(connection.recv() ** 2)


def burn():
    """Work for ever."""
    while True:
        pass


def pss(pid):
    """Megabytes of memory that a process adds, shared pages counted by share."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024


class Ours:
    """One worker of `reward_fns.pool`."""

    def __init__(self):
        from reward_fns.pool import Pool

        self.pool = Pool(workers=1)

    def answer(self):
        self.pool.run("builtins:pow", 3, 2, time_limit=100)

    def pid(self):
        return self.pool.run("os:getpid").value

    def burn(self):
        self.pool.submit("fork_server_figures:burn", time_limit=100)


class Standard:
    """One worker of multiprocessing's forkserver, with the same modules loaded before."""

    def __init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["reward_fns.algebra"])
        self.worker = None

    def answer(self):
        while True:
            if self.worker is None or not self.worker.is_alive():
                self.connection, theirs = self.context.Pipe()
                self.worker = self.context.Process(target=_module().serve, args=(theirs,), daemon=True)
                self.worker.start()
                theirs.close()
            try:
                self.connection.send(3)
                self.connection.recv()
                return
            except (OSError, EOFError):
                self.worker.join()

    def pid(self):
        return self.worker.pid

    def burn(self):
        self.context.Process(target=_module().burn, daemon=True).start()


def _module():
    """This file under its name: a worker must not import the main module anew."""
    import fork_server_figures

    return fork_server_figures


def seconds(call):
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(kind):
    pool = kind()
    first = seconds(pool.answer)
    replaced = []
    for _ in range(KILLS):
        pid = pool.pid()
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            time.sleep(0.001)
        replaced.append(1000 * seconds(pool.answer))
    return first, statistics.median(replaced), pss(pool.pid())


def outlive(name):
    """Seconds that processes of a killed parent go on; None when some are left after twenty."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fork_server_figures as f, time\n"
    script += f"if __name__ == '__main__':\n p = f.{name}(); p.answer(); p.burn(); time.sleep(1)\n"
    script += " print('up', flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    parent.stdout.readline()
    descendants = {parent.pid}
    for _ in range(4):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    mother = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, ValueError):
                    continue
                descendants |= {int(entry.name)} if mother in descendants else set()
    descendants.discard(parent.pid)
    parent.kill()
    parent.wait()
    started = time.monotonic()
    while time.monotonic() - started < 20:
        if not any(Path(f"/proc/{pid}").exists() for pid in descendants):
            return time.monotonic() - started
        time.sleep(0.02)
    for pid in descendants:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return None


def main():
    for kind in (Ours, Standard):
        first, replaced, memory = measure(kind)
        left = outlive(kind.__name__)
        gone = "left over after 20 s" if left is None else f"gone after {left:.1f} s"
        print(f"{kind.__name__}: first {first:.1f} s, replaced {replaced:.0f} ms, worker {memory:.0f} MB, {gone}")


if __name__ == "__main__":
    main()
