"""Programs import of kubernetes_asyncio what they use, and can still ask for the rest."""

import subprocess
import sys

import pytest

PREFIX = "kubernetes_asyncio.client.models."
COUNT = f"sum(name.startswith({PREFIX!r}) for name in sys.modules)"
PROGRAM = f"""
import os, sys
import support.without_rich

for name in ("mizar_kube.client", "mizar_nodeagent.main"):
    __import__(name)
    print({COUNT}, flush=True)

from kubernetes_asyncio import client

for name in sys.argv[1:]:
    if os.fork() == 0:
        print(getattr(client, name, "not there"), flush=True)
        os._exit(0)
    os.wait()
"""
"""Prints how many models are imported with each program, then asks for each name in a process that
has asked for no other."""
NAMES = ("V1Pod", "CoreV1Api", "ApiClient", "ApiException")


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What a new interpreter prints: to import the node agent takes a second."""
    command = [sys.executable, "-c", PROGRAM, *NAMES, "V0Pod"]
    return subprocess.check_output(command, text=True).splitlines()


def test_no_model_is_imported(printed: list[str]) -> None:
    assert printed[:2] == ["0", "0"]


def test_every_class_is_found_when_it_is_asked_for_and_no_other_name_is(printed: list[str]) -> None:
    *found, missing = printed[2:]
    assert [name in each for name, each in zip(NAMES, found, strict=True)] == [True] * len(NAMES)
    assert missing == "not there"
