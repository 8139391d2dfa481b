"""Finds out, once and quickly, which of the hosts that publish releases answer at all."""

from __future__ import annotations

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable

from cluster.binaries.components import Host


def url(host: Host, path: str = "") -> str:
    """The address of `path` on `host`, or on the host that the environment names instead."""
    return os.environ.get(host.variable, host.url).rstrip("/") + path


def silent(hosts: Iterable[Host], within: float) -> dict[Host, str]:
    """Those of `hosts` that do not answer, each with the reason; takes at most `within` seconds.

    All are asked at the same time, and by threads that may stay behind: looking up a name
    has no time limit of its own. Any HTTP answer will do, an error as well.
    """
    reasons = dict.fromkeys(hosts, f"no answer within {within:g} s")
    threads = [
        threading.Thread(target=_ask, args=(host, within, reasons), daemon=True)
        for host in list(reasons)
    ]
    deadline = time.monotonic() + within
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {host: reason for host, reason in reasons.copy().items() if reason}


def _ask(host: Host, within: float, reasons: dict[Host, str]) -> None:
    try:
        request = urllib.request.Request(url(host), method="HEAD")
        urllib.request.urlopen(request, timeout=within).close()
    except urllib.error.HTTPError as error:
        error.close()
    except urllib.error.URLError as error:
        reasons[host] = str(error.reason)
        return
    except (OSError, ValueError) as error:
        reasons[host] = str(error)
        return
    reasons[host] = ""
