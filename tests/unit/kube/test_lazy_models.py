"""Programs import of kubernetes_asyncio what they use, and can still ask for the rest."""

import subprocess
import sys

import pytest

PREFIX = "kubernetes_asyncio.client.models."
COUNT = f"import sys; print(sum(name.startswith({PREFIX!r}) for name in sys.modules))"


def printed(program: str, *arguments: str) -> str:
    """What a new interpreter prints."""
    return subprocess.check_output([sys.executable, "-c", program, *arguments], text=True).strip()


@pytest.mark.parametrize("program", ["mizar_nodeagent.main", "mizar_kube.client"])
def test_no_model_is_imported(program: str) -> None:
    assert printed(f"import {program}; {COUNT}") == "0"


EACH = """
import os, sys, mizar_kube
from kubernetes_asyncio import client

for name in sys.argv[1:]:
    if os.fork() == 0:
        print(getattr(client, name, "not there"), flush=True)
        os._exit(0)
    os.wait()
"""
"""Asks for each name in a process that has asked for no other."""
NAMES = ("V1Pod", "CoreV1Api", "ApiClient", "ApiException")


def test_every_class_is_found_when_it_is_asked_for_and_no_other_name_is() -> None:
    *found, missing = printed(EACH, *NAMES, "V0Pod").splitlines()
    assert [name in each for name, each in zip(NAMES, found, strict=True)] == [True] * len(NAMES)
    assert missing == "not there"
