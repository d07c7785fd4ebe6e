"""A child that is forked from this process, which has imported everything, so that it starts within milliseconds."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings


class Forked:
    """A process of its own that runs a function, as a program would: with a session, streams and an exit code.

    A context manager, which ends the process and all of its session.

    Args:
        work: The function. It may raise SystemExit, as `main` does.
        cwd: Working directory of the child.
        environment: Variables that are added to this process's environment.
    """

    def __init__(self, work, *, cwd, environment=None):
        self._streams = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115
        self.result = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: this process may have threads
            self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._run(work, cwd, environment or {}))

    def _run(self, work, cwd, environment):
        """In the child: set the process up, do the work and return the exit code."""
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, name in enumerate(("stdout", "stderr"), start=1):
            os.dup2(self._streams[number - 1].fileno(), number)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        code = 1
        try:
            os.chdir(cwd)
            os.environ.update(environment)
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        return code

    def poll(self):
        """Return the exit code if the process has ended (minus the signal's number if a signal ended it), else None."""
        if self.result is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended(status)
        return None if self.result is None else self.result.returncode

    def wait(self):
        """Wait for the end. Returns a `subprocess.CompletedProcess` with exit code and text of both streams."""
        if self.result is None:
            self._ended(os.waitpid(self.pid, 0)[1])
        return self.result

    def _ended(self, status):
        texts = []
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read().decode())
            stream.close()
        self.result = subprocess.CompletedProcess([], os.waitstatus_to_exitcode(status), *texts)

    def kill(self):
        """End this process alone, as the kernel does when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)

    def interrupt(self):
        """Press Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
