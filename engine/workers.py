"""Threads that carry out what blocks, and report to the coordinator's inbox.

Knows nothing of nodes: a job is a callable, its return value the report. Threads are
started when there is more to do than idle threads, up to the limit.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue


@dataclass(frozen=True, slots=True)
class Crashed:
    """A job raised: a broken invariant, to be raised again by the coordinator."""

    error: BaseException


Job = Callable[[], object]


class Workers:
    """`inbox` receives each job's return value, or `Crashed`, in order of completion."""

    def __init__(self, limit: int, inbox: SimpleQueue[object]) -> None:
        self._limit = limit
        self._inbox = inbox
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    def submit(self, job: Job) -> None:
        """Coordinator only. The report arrives in the inbox; `finished` must be told. Raises
        OSError when the system does not allow a single thread."""
        self._unfinished += 1
        if self._unfinished > len(self._threads) and len(self._threads) < self._limit:
            # Daemon threads: an internal error in the coordinator must end the process,
            # not hang it; a run that ends as it should has joined them.
            thread = threading.Thread(target=self._work, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # A limit of processes counts threads too. Those there are do the work.
                if not self._threads:
                    raise OSError(
                        errno.EAGAIN,
                        "The system refuses another thread: a limit of processes is reached",
                    ) from None
            else:
                self._threads.append(thread)
        self._jobs.put(job)

    def finished(self) -> None:
        """Coordinator only: one report was taken from the inbox."""
        self._unfinished -= 1

    def stop(self) -> None:
        """Ends the threads once what was submitted is done."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            report: object
            try:
                report = job()
            except BaseException as error:  # noqa: BLE001 - handed to the coordinator, which raises it
                report = Crashed(error)
            self._inbox.put(report)
