"""Environments in worker processes: each worker runs a slice of them and writes into memory that all processes share.

A step is one byte to each worker and one byte back; results are where they are needed already. A worker that dies is seen
at once, one that hangs at its deadline; both are reported as the failure of the environment it was in, with the others that
were lost with it, and `restart_selected` starts a new worker for them. No process or memory outlives the pool, however it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import select
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import Relabelled
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.failures import EnvFailure, EnvFailureError, FailureKind
from relayrl.envs.recipes import EnvRecipe, find_factory
from relayrl.envs.vector.env_buffers import BufferCarver, ByteCounter, EnvBuffers, allocate_buffers
from relayrl.envs.vector.env_loop import EnvState, VectorRunner
from relayrl.envs.workers import worker_messages as messages
from relayrl.envs.workers.worker_link import WorkerLink, anonymous_file, stop_links
from relayrl.envs.workers.worker_process import in_worker
from relayrl.errors import ConfigError, EnvError

_CLOSE_GRACE_S = 2.0
_LIVENESS_S = 0.5


@dataclass(slots=True)
class _Answers:
    """What came back from an exchange: values by the first environment of their worker, and failures of environments."""

    values: dict[int, Any] = field(default_factory=dict)
    failures: list[EnvFailure] = field(default_factory=list)


class WorkerPool(VectorRunner):
    """`settings.workers` processes that share `settings.num_envs` environments evenly."""

    def __init__(self, recipe: EnvRecipe, settings: EnvSettings) -> None:
        self._recipe, self._main_module = _portable(recipe)
        self._settings = settings
        self._buffers: EnvBuffers | None = None
        self._lock = threading.Lock()
        self._memory_fd = anonymous_file("relayrl-envs")
        self._links: list[WorkerLink] = []
        self._poller = select.poll()
        self._finish = weakref.finalize(self, _release, self._links, self._memory_fd, os.getpid())
        bounds = np.linspace(0, settings.num_envs, min(settings.workers, settings.num_envs) + 1).astype(int).tolist()
        try:
            for first, last in itertools.pairwise(bounds):
                self._links.append(self._start(first, last))
            self._build_first_time()
        except BaseException:
            self.close()
            raise

    @property
    def num_envs(self) -> int:
        return self._settings.num_envs

    @property
    def process_ids(self) -> list[int]:
        """The worker processes, in the order of their environments."""
        return [link.process_id for link in self._links]

    def step(self) -> list[EnvFailure]:
        return self._exchange(self._links, messages.STEP, self._settings.step_timeout_s).failures

    def reset_selected(self) -> list[EnvFailure]:
        return self._exchange(self._with_selected(), messages.RESET, self._settings.start_timeout_s).failures

    def restart_selected(self) -> list[EnvFailure]:
        chosen = self._with_selected()
        living = [link for link in chosen if link.alive]
        new, failures = self._respawn([link for link in chosen if not link.alive])
        failures += self._exchange(new, messages.RESET, self._settings.start_timeout_s).failures
        return failures + self._exchange(living, messages.RESTART, self._settings.start_timeout_s).failures

    def get_state(self) -> list[EnvState]:
        answers = self._exchange(self._links, messages.GET_STATE, self._settings.start_timeout_s)
        _raise_first(answers.failures)
        return [state for link in self._links for state in answers.values[link.first]]

    def set_state(self, states: Sequence[EnvState]) -> None:
        slices = {link.first: list(states[link.first : link.last]) for link in self._links}
        answers = self._exchange(self._links, messages.SET_STATE, self._settings.start_timeout_s, slices)
        _raise_first(answers.failures)

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        rated: float = self._ask_first(messages.RATE, rewards)
        return rated

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        relabelled: Relabelled = self._ask_first(messages.RELABEL, (achieved, desired))
        return relabelled

    def _ask_first(self, code: bytes, question: Any) -> Any:
        """What the first worker answers to a question that any of them could answer."""
        link = self._links[0]
        answers = self._exchange([link], code, self._settings.step_timeout_s, {link.first: question})
        _raise_first(answers.failures)
        return answers.values[link.first]

    def frames(self, envs: Sequence[int]) -> list[Array]:
        own = {link.first: [b - link.first for b in envs if b in link.envs] for link in self._links}
        asked = [link for link in self._links if own[link.first]]
        answers = self._exchange(asked, messages.DRAW, self._settings.step_timeout_s, own)
        _raise_first(answers.failures)
        drawn = {
            link.first + b: frame
            for link in asked
            for b, frame in zip(own[link.first], answers.values[link.first], strict=True)
        }
        return [drawn[b] for b in envs]

    def final_frames(self) -> Mapping[int, Array]:
        ended = [link for link in self._links if self.buffers.episode_over[link.first : link.last].any()]
        answers = self._exchange(ended, messages.FINAL_FRAMES, self._settings.step_timeout_s)
        _raise_first(answers.failures)
        return {first + b: frame for first, own in answers.values.items() for b, frame in own.items()}

    def close(self) -> None:
        self._finish()

    def _start(self, first: int, last: int) -> WorkerLink:
        link = WorkerLink(first, last, self._memory_fd)
        self._poller.register(link.reply_fd, select.POLLIN)
        return link

    def _with_selected(self) -> list[WorkerLink]:
        return [link for link in self._links if self.buffers.selected[link.first : link.last].any()]

    def _build_first_time(self) -> None:
        built = self._build(self._links)
        _raise_first(built.failures)
        self.layout = built.values[0].layout
        self.stateful = built.values[0].stateful
        counter = ByteCounter()
        allocate_buffers(self.layout, self.num_envs, counter)
        self._num_bytes = counter.num_bytes
        os.ftruncate(self._memory_fd, self._num_bytes)
        memory = mmap.mmap(self._memory_fd, self._num_bytes)
        self.buffers = self._buffers = allocate_buffers(self.layout, self.num_envs, BufferCarver(memory))
        _raise_first(self._attach(self._links).failures)

    def _build(self, links: Sequence[WorkerLink]) -> _Answers:
        tasks = {link.first: messages.BuildTask(self._recipe, len(link.envs), self._main_module) for link in links}
        return self._exchange(links, messages.BUILD, self._settings.start_timeout_s, tasks)

    def _attach(self, links: Sequence[WorkerLink]) -> _Answers:
        check = self._settings.observation_check
        tasks = {
            link.first: messages.AttachTask(self.layout, self.num_envs, link.first, link.last, self._num_bytes, check)
            for link in links
        }
        return self._exchange(links, messages.ATTACH, self._settings.start_timeout_s, tasks)

    def _respawn(self, dead: Sequence[WorkerLink]) -> tuple[list[WorkerLink], list[EnvFailure]]:
        """New workers in place of `dead` ones: those that are ready, and the failures of those that are not."""
        new = []
        for old in dead:
            old.close()
            link = self._start(old.first, old.last)
            self._links[self._links.index(old)] = link
            new.append(link)
        failures = self._build(new).failures
        failures += self._attach([link for link in new if link.alive]).failures
        return [link for link in new if link.alive], failures

    def _exchange(
        self,
        links: Sequence[WorkerLink],
        code: bytes,
        timeout_s: float,
        payloads: Mapping[int, Any] | None = None,
    ) -> _Answers:
        """Send a message to some workers and wait for their answers, at most `timeout_s`.

        An interrupted exchange leaves answers in the pipes that nobody would match with their questions, so the pool ends.
        """
        with self._lock:  # a learner may ask for rewards of other goals while another thread collects
            return self._exchange_alone(links, code, timeout_s, payloads)

    def _exchange_alone(
        self, links: Sequence[WorkerLink], code: bytes, timeout_s: float, payloads: Mapping[int, Any] | None
    ) -> _Answers:
        if not self._finish.alive:
            raise EnvError("the workers have been stopped, by an interrupt or a failure; make a new environment")
        answers = _Answers()
        waiting: dict[int, WorkerLink] = {}
        try:
            for link in links:
                if link.alive and link.send(code, None if payloads is None else payloads[link.first]):
                    waiting[link.reply_fd] = link
                else:
                    answers.failures.append(self._give_up(link, f"its worker process {link.how_it_ended()}"))
            deadline_s = time.monotonic() + timeout_s
            while waiting:
                wait_s = min(_LIVENESS_S, max(0.0, deadline_s - time.monotonic()))
                ready = messages.stay_awake_for(self._poller) or self._poller.poll(wait_s * 1000)
                for fd, _ in ready:
                    self._take_answer(fd, waiting, answers)
                if not ready:
                    self._look_for_the_lost(waiting, answers, time.monotonic() >= deadline_s, timeout_s)
        except BaseException:
            self.close()
            raise
        return answers

    def _take_answer(self, fd: int, waiting: dict[int, WorkerLink], answers: _Answers) -> None:
        link = waiting.pop(fd, None)
        if link is None:
            # A worker that was not asked has died: it is reported when it is asked next.
            self._poller.unregister(fd)
            return
        answer = link.receive()
        if answer is None:
            answers.failures.append(self._give_up(link, f"its worker process {link.how_it_ended()}"))
            return
        code, payload = answer
        if code == messages.VALUE:
            answers.values[link.first] = payload
        elif code == messages.FAILURES:
            answers.failures += [failure.moved(link.first) for failure in payload]
        elif code == messages.UNBUILT:
            answers.failures.append(self._give_up(link, payload.reason, payload))
        elif code == messages.REFUSED:
            raise ConfigError(payload)

    def _look_for_the_lost(
        self, waiting: dict[int, WorkerLink], answers: _Answers, is_late: bool, timeout_s: float
    ) -> None:
        """Give up workers that ended without closing their pipe and, past the deadline, all that have not answered."""
        for fd, link in list(waiting.items()):
            if is_late and not link.has_exited():
                link.dump_traceback()
                link.kill()
                answers.failures.append(self._give_up(link, f"gave no answer within {timeout_s:g} s and was stopped"))
                del waiting[fd]
            elif link.has_exited():
                answers.failures.append(self._give_up(link, f"its worker process {link.how_it_ended()}"))
                del waiting[fd]

    def _give_up(self, link: WorkerLink, reason: str, failure: EnvFailure | None = None) -> EnvFailure:
        """The failure of all environments of a worker, which is ended; blamed on `failure` or on the environment that it was
        in."""
        link.kill()
        with contextlib.suppress(KeyError):
            self._poller.unregister(link.reply_fd)
        blamed = link.first
        if failure is not None:
            blamed += failure.env
        elif self._buffers is not None:
            blamed += int(self._buffers.busy_env[link.first])
        lost = tuple(env for env in link.envs if env != blamed)
        log = link.fault_log() if failure is None else failure.traceback
        return EnvFailure(blamed, FailureKind.STOPPED, reason, log, lost)


def _portable(recipe: EnvRecipe) -> tuple[bytes, dict[str, Any]]:
    """The recipe in a form that a worker can be sent, and how it finds the script that a factory is defined in."""
    if in_worker():
        raise ConfigError("workers were asked for inside a worker; start training under `if __name__ == '__main__':`")
    try:
        body = pickle.dumps(recipe)
    except (pickle.PicklingError, AttributeError, TypeError):
        return _by_value(recipe), {}
    module = recipe.env.partition(":")[0] if isinstance(recipe.env, str) else getattr(recipe.env, "__module__", None)
    if module != "__main__":
        return body, {}
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return body, {"sys_argv": sys.argv, "init_main_from_name": spec.name}
    if path is not None:
        return body, {"sys_argv": sys.argv, "init_main_from_path": os.path.abspath(path)}
    return _by_value(replace(recipe, env=find_factory(recipe.env))), {}


def _by_value(recipe: EnvRecipe) -> bytes:
    """A recipe whose factory no worker can import: a lambda, a class of a function or of a notebook. Its code is sent."""
    import cloudpickle  # type: ignore[import-untyped]

    try:
        return bytes(cloudpickle.dumps(recipe))
    except Exception as error:
        raise ConfigError(
            f"{recipe.name} cannot be sent to worker processes ({error}); what it refers to must be picklable: give a function "
            "or class at the top level of a module, or 'package.module:factory', or set workers to 0"
        ) from error


def _raise_first(failures: Sequence[EnvFailure]) -> None:
    if failures:
        raise EnvFailureError(failures[0])


def _release(links: list[WorkerLink], memory_fd: int, owner: int) -> None:
    """End the workers and let go of the memory; arrays that are still in use keep their pages."""
    if os.getpid() != owner:
        return  # A process that was forked from the owner holds a copy of the pool, not the workers.
    stop_links(links, _CLOSE_GRACE_S)
    links.clear()
    os.close(memory_fd)
