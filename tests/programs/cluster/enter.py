"""What happens between fork and exec: makes a node's namespaces, or starts a program in them.

Run as a script by a bare Python, with a JSON request on standard input, so it imports nothing
of this package. Each new process writes its id and start time down before it becomes what it
shall be: whatever is killed when, `down` finds it.

    {"do": "hold", "record": FILE, "hostname": NAME, "mounts": [...]}
    {"do": "run", "record": FILE, "holder": PID or null, "argv": [...], "log": FILE}

Prints nothing on success; ends with 1 and a sentence on standard error otherwise.
"""

# Importing pathlib would be half of the time that this takes.
# ruff: noqa: PTH104, PTH115, PTH123
from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
OTHER_NAMESPACES = ("ipc", "uts", "net", "mnt")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int) -> None:
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(0)), "setns")


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {source} on {target}")


def hold(request: dict[str, Any]) -> None:
    """Start a process whose only task is to keep the namespaces of a node."""
    unshare(CLONE_NEWPID)
    written, tell_written = os.pipe()
    done, tell_done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell_written)
        os.close(done)
        _become_holder(request, written, tell_done)
    os.close(tell_done)
    write_record(request["record"], child)
    os.write(tell_written, b".")
    complaint = os.read(done, 10000).decode()
    if complaint:
        sys.exit(complaint)


def _become_holder(request: dict[str, Any], written: int, tell_done: int) -> NoReturn:
    try:
        os.setsid()
        if not os.read(written, 1):
            os._exit(1)  # our parent died before it wrote us down
        unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC)
        hostname = request["hostname"].encode()
        _check(_libc.sethostname(hostname, len(hostname)), "sethostname")
        for source, target, kind, flags, data in request["mounts"]:
            mount(source, target, kind, flags, data)
        os.chdir("/")
        # Ignored, and inherited so: the kernel then reaps every orphan of the node by itself.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _reset_signals()
        _redirect("/dev/null")
        os.execv("/bin/sleep", ["sleep", "infinity"])
    except BaseException as error:
        os.write(tell_done, f"making a node's namespaces: {error}".encode())
    os._exit(1)


def run(request: dict[str, Any]) -> None:
    """Start a program, in the namespaces of a holder if one is given."""
    holder = request["holder"]
    namespaces = _open_namespaces(holder) if holder else []
    if holder:
        with open(f"/proc/{holder}/ns/pid") as file:
            setns(file.fileno())
    failed, tell_failed = os.pipe()
    if os.fork() == 0:
        # Twice: a process whose parent is inside belongs, when orphaned, to the node's first one.
        if os.fork() == 0:
            _become(request, namespaces, tell_failed)
        os._exit(0)
    os.wait()
    os.close(tell_failed)
    complaint = os.read(failed, 10000).decode()
    if complaint:
        sys.exit(complaint)


def _open_namespaces(holder: int) -> list[int]:
    return [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in OTHER_NAMESPACES]


def _become(request: dict[str, Any], namespaces: list[int], tell_failed: int) -> NoReturn:
    argv = request["argv"]
    try:
        os.setsid()
        # /proc is still the host's, so this is the process id as the host sees it.
        write_record(request["record"], int(os.readlink("/proc/self")))
        _redirect(request["log"])
        for fd in namespaces:
            setns(fd)
        os.chdir("/")
        _reset_signals()
        os.execv(argv[0], argv)
    except BaseException as error:
        os.write(tell_failed, f"starting {argv[0]}: {error}".encode())
    os._exit(1)


def _redirect(log: str) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _reset_signals() -> None:
    """Reset what Python has set for itself and exec would keep."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def write_record(path: str, pid: int) -> None:
    """Write the process ID and its start time (ticks since boot) to `path` atomically."""
    with open(f"/proc/{pid}/stat") as file:
        start = int(file.read().rpartition(")")[2].split()[19])
    temporary = f"{path}.{pid}"
    with open(temporary, "w") as file:
        json.dump({"pid": pid, "start": start}, file)
    os.rename(temporary, path)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    {"hold": hold, "run": run}[asked["do"]](asked)
