"""One thread of the driver that watches a run's processes, tells how its start-up goes, and ends it when it must.

verl waits without a limit in several places (the replay buffer polls until enough groups are finished, a weight sync
waits for an engine), so a killed agent loop, server or engine can leave the driver silent, and a hang kills nothing.
Watched are the actors of the run's own Ray job on every node and the run's processes on this host. Ray names a worker's
process after the call that it runs, and vLLM its engines, so that titles tell what a run does.

A run ends when an actor or an engine exited unexpectedly, when a process has been stopped (SIGSTOP) for a minute, and
when the same calls have gone on for ``VERL_DUETS_STALL_SECONDS``. Before, verl has a moment to end by itself.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from recipes.core.settings import Limit, seconds_from
from recipes.launch import leftovers

POLL_SECONDS = 3.0
GRACE_SECONDS = 20.0
REPEAT_SECONDS = 60.0
REPORT_SECONDS = 600.0
STOPPED_SECONDS = 60.0
VARIABLE = "VERL_DUETS_STALL_SECONDS"
EXIT_CODE = 1
ENGINE_TITLES = ("VLLM::EngineCore", "VLLM::Worker")
SERVER = re.compile(r"ray::\w*HttpServer")
SPAWNED = "multiprocessing.spawn"
HELPER_SECONDS = 60.0
LOW_ON_MEMORY = "low on memory"
"""In what Ray says of a worker that it has killed for that."""

# The text in a process's title, and what the run does then; in a start-up from its last stage to its first.
STAGES = (
    ("save_checkpoint", "the checkpoint is saved"),
    ("update_actor", "the policy is updated"),
    ("update_critic", "the critic is updated"),
    ("compute_values", "the critic computes values"),
    ("log_prob", "log-probs are computed"),
    ("compute_score", "responses are scored"),
    ("generate_sequences", "rollouts are written"),
    ("HttpServer.generate", "rollouts are written"),
    ("update_weights", "the rollout engines take the model's weights"),
    ("load_checkpoint", "the training workers load the checkpoint"),
    ("launch_server", "the rollout engines load the model"),
    ("init_model", "the training workers load the model"),
    ("WorkerDict", "the training workers start"),
    ("TaskRunner", "the task runner starts"),
    ("raylet", "Ray has started"),
)


class Process(NamedTuple):
    """What is seen of one process.

    Attributes:
        parent: its pid.
        title: or command line.
        age: seconds since it was seen first, which a step of the clock does not change.
        stopped: by SIGSTOP.
        cpu: seconds of processor time that it has taken.
        memory: bytes resident.
    """

    parent: int
    title: str
    age: float = 0.0
    stopped: bool = False
    cpu: float = 0.0
    memory: int = 0


def limit_seconds() -> float:
    """Seconds without any change after which a run is ended, from the environment; infinite when it is not set.

    Raises:
        ConfigError: the variable is no positive number.
    """
    return seconds_from(VARIABLE, float("inf"), Limit)


def _stage(titles: Collection[str]) -> int | None:
    """The first row of :data:`STAGES` that shows in a title."""
    names = [_name(title) for title in titles]
    return next((row for row, (mark, _) in enumerate(STAGES) if any(mark in name for name in names)), None)


@dataclass
class StartUp:
    """Tells each stage of a start-up once, and again while it lasts."""

    repeat: float = REPEAT_SECONDS
    _stage: int = len(STAGES)
    _told: float = 0.0

    def poll(self, titles: Collection[str], now: float) -> str:
        """What is to be said, "" for nothing: between two stages an earlier one shows again."""
        stage = _stage(titles)
        if stage is None or stage > self._stage:
            return ""
        if stage == self._stage and now - self._told < self.repeat:
            return ""
        self._stage, self._told = stage, now
        return STAGES[stage][1]


@dataclass
class Stall:
    """Sees which process is stopped, and which actors have been at the same call for how long.

    A run whose calls stay the same is either at work on something large or waits for what will not come. How much
    processor time its processes took meanwhile tells which.

    Attributes:
        limit: seconds without a change after which the run must end.
        report: seconds without a change after which there is something to tell, and again as often.
        stopped: seconds for which a process may be stopped.
    """

    limit: float = field(default_factory=limit_seconds)
    report: float = REPORT_SECONDS
    stopped: float = STOPPED_SECONDS
    _calls: frozenset[tuple[int, str]] = frozenset()
    _since: float = 0.0
    _told: float = 0.0
    _cpu: dict[int, float] = field(default_factory=dict)
    _stopped_since: dict[int, float] = field(default_factory=dict)

    def poll(self, processes: Mapping[int, Process], now: float) -> tuple[str, bool]:
        """What is to be said ("" for nothing), and whether the run must end with it."""
        still = {pid for pid, process in processes.items() if process.stopped}
        self._stopped_since = {pid: self._stopped_since.get(pid, now) for pid in still}
        for pid, since in self._stopped_since.items():
            if now - since >= self.stopped:
                return f"{_name(processes[pid].title)} (pid {pid}) has been stopped for {now - since:.0f} s", True
        calls = frozenset((pid, process.title) for pid, process in processes.items() if _is_call(process.title))
        if calls != self._calls:
            self._calls, self._since, self._told = calls, now, now
            self._cpu = {pid: process.cpu for pid, process in processes.items()}
        waited = now - self._since
        if calls and waited >= self.limit:
            return f"{self._sentence(processes, waited)} ({VARIABLE}={self.limit:g})", True
        if calls and now - self._told >= self.report:
            self._told = now
            return self._sentence(processes, waited), False
        return "", False

    def _sentence(self, processes: Mapping[int, Process], waited: float) -> str:
        at_work = [pid for pid, _ in sorted(self._calls)]
        at_work += [pid for pid, process in sorted(processes.items()) if process.title.startswith("VLLM::")]
        names = ", ".join(
            f"{_name(processes[pid].title)} (pid {pid}, {processes[pid].cpu - self._cpu.get(pid, 0.0):.0f} s of CPU)"
            for pid in at_work
        )
        stage = _stage([title for _, title in self._calls])
        doing = "" if stage is None else f" while {STAGES[stage][1]}"
        return f"nothing has changed for {waited:.0f} s{doing}: {names}"


def _is_call(title: str) -> bool:
    """Whether the title is one of an actor that is in a call; the task runner is in its one call from begin to end."""
    name = _name(title)
    return name.startswith("ray::") and "." in name and "TaskRunner" not in name


def _name(title: str) -> str:
    return title.split()[0] if title else "a process without a title"


@dataclass
class Monitor:
    """Watches one run until :meth:`stop`; ``problem`` is the sentence that ended it, if one did.

    Attributes:
        name: of the recipe, before each line about the start-up.
        step: the step that the trainer says it is in, None before the first: what titles show is then no start-up.
    """

    name: str
    run: leftovers.RunRecord
    stall: Stall = field(default_factory=Stall)
    start_up: StartUp = field(default_factory=StartUp)
    step: Callable[[], str | None] = lambda: None
    poll: float = POLL_SECONDS
    grace: float = GRACE_SECONDS
    problem: str | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _engines: dict[int, str] = field(default_factory=dict)
    _first_seen: dict[int, float] = field(default_factory=dict)
    _most_memory: dict[int, Process] = field(default_factory=dict)

    def start(self) -> None:
        threading.Thread(target=self._watch, name="verl-duets-monitor", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def cause(self, error: Exception) -> str | None:
        """Why a run ends, where an actor's death tells more than the error of its driver; Ray may learn of it later."""
        from ray.exceptions import RayActorError

        deadline = time.monotonic() + (2 * self.poll if isinstance(error, RayActorError) else 0)
        with contextlib.suppress(Exception):  # Ray may be gone as well
            while not (reason := self.problem or self._dead_actor()) and time.monotonic() < deadline:
                time.sleep(0.5)
            return reason

    def _dead_actor(self) -> str | None:
        problem = dead_actor()
        if problem is None or LOW_ON_MEMORY not in problem:
            return problem
        largest = sorted(list(self._most_memory.values()), key=lambda process: -process.memory)[:4]
        held = ", ".join(f"{_name(process.title)} {process.memory / 2**30:.1f} GiB" for process in largest)
        return (
            f"out of memory: {problem}. Most that its processes here held: {held}. Lower what is trained on at once "
            "(actor_rollout_ref.actor.ppo_max_token_len_per_gpu or ppo_micro_batch_size_per_gpu) or the engine's cache "
            "(rollout.max_num_seqs, engine_kwargs.vllm.kv_cache_memory_bytes), or end what else runs here"
        )

    def _watch(self) -> None:
        began = time.monotonic()
        while not self.problem:
            if self._stopped.wait(self.poll):
                return
            try:
                now = time.monotonic()
                processes = self._seen(leftovers.processes_of({self.run.name}), now)
                titles = [process.title for process in processes.values()]
                if not self.step() and (stage := self.start_up.poll(titles, now)):
                    _say(f"{self.name}: {stage} ({now - began:.0f} s)")
                self.problem = self._dead_actor() or self._dead_engine(processes) or self._stall_problem(processes, now)
            except Exception as error:  # whatever Ray raises when its head is busy: a lost look must not end the watch
                _say(f"monitor: a look failed, the next is in {self.poll:g} s: {error!r}")
        if self._stopped.wait(self.grace):
            return
        _say(
            f"\nThe run has ended: {self.problem}. "
            "Its last complete checkpoint is kept; the same command resumes from it."
        )
        leftovers.stop_processes(leftovers.processes_of({self.run.name}))
        leftovers.remove_shared_memory(self.run)
        leftovers.end_run(self.run)
        os._exit(EXIT_CODE)

    def _seen(self, processes: Iterable[psutil.Process], now: float) -> dict[int, Process]:
        alive = {}
        for process in processes:
            # One that has ended meanwhile, a zombie included, is not seen.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                age = now - self._first_seen.setdefault(process.pid, now)
                times = process.cpu_times()
                stopped = process.status() == psutil.STATUS_STOPPED
                title = " ".join(process.cmdline())
                memory = process.memory_info().rss
                alive[process.pid] = Process(process.ppid(), title, age, stopped, times.user + times.system, memory)
                if memory > self._most_memory.get(process.pid, Process(0, "")).memory:
                    self._most_memory[process.pid] = alive[process.pid]
        self._first_seen = {pid: self._first_seen[pid] for pid in alive}
        return alive

    def _stall_problem(self, processes: Mapping[int, Process], now: float) -> str | None:
        """A sentence about a run that must end because it stands still; one that may go on is only told of."""
        sentence, must_end = self.stall.poll(processes, now)
        if sentence and not must_end:
            _say(f"\n{sentence}")
        return sentence if must_end else None

    def _dead_engine(self, processes: Mapping[int, Process]) -> str | None:
        before, self._engines = self._engines, engines(processes)
        for pid, name in before.items():
            if pid not in self._engines:
                return f"the rollout engine process {name} (pid {pid}) died"
        return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def engines(processes: Mapping[int, Process]) -> dict[int, str]:
    """vLLM's engine processes among those of a run, by pid, with their names.

    vLLM names them by setproctitle, which does nothing in a process whose first environment variable was set again
    before. One without a title is known by its parent, a server of verl or an engine, and by its age, since those also
    spawn helpers that end soon. What an engine forks has its title until it executes another program.
    """

    def children(parents: Collection[int]) -> set[int]:
        return {
            pid
            for pid, process in processes.items()
            if process.parent in parents and SPAWNED in process.title and process.age > HELPER_SECONDS
        }

    titled = {
        pid: seen.title.split()[0]
        for pid, seen in processes.items()
        if seen.title.startswith(ENGINE_TITLES)
        and (seen.parent not in processes or processes[seen.parent].title != seen.title)
    }
    servers = [pid for pid, seen in processes.items() if SERVER.match(seen.title)]
    cores = children(servers) | {pid for pid, name in titled.items() if name.startswith(ENGINE_TITLES[0])}
    workers = children(cores)
    return dict.fromkeys(cores, ENGINE_TITLES[0]) | dict.fromkeys(workers, ENGINE_TITLES[1]) | titled


def dead_actor() -> str | None:
    """A sentence about an actor of this job that exited unexpectedly, None while all runs or before Ray is up."""
    import ray
    from ray._private import state
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    if not ray.is_initialized():
        return None
    job = ray.get_runtime_context().get_job_id()
    for actor in state.actors(job_id=ray.JobID.from_hex(job), actor_state_name="DEAD").values():
        cause = actor["DeathCause"]
        context = cause.actor_died_error_context
        unexpected = context.reason in (ActorDiedErrorContext.WORKER_DIED, ActorDiedErrorContext.NODE_DIED)
        if unexpected or cause.HasField("oom_context"):
            reason = cause.oom_context.error_message or context.error_message
            what = f"actor {actor['ActorClassName']} {actor['Name']}".strip()
            first = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
            return f"{what} (pid {actor['Pid']} on {actor['Address']['IPAddress']}) died: {first}"
    return None
