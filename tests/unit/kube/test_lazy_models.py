"""Programs import of kubernetes_asyncio what they use, and can still ask for the rest."""

import subprocess
import sys

import pytest

PREFIX = "kubernetes_asyncio.client.models."
COUNT = f"import sys; print(sum(name.startswith({PREFIX!r}) for name in sys.modules))"


def printed(program: str) -> str:
    """What a new interpreter prints."""
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


@pytest.mark.parametrize("program", ["mizar_nodeagent.main", "mizar_kube.client"])
def test_no_model_is_imported(program: str) -> None:
    assert printed(f"import {program}; {COUNT}") == "0"


@pytest.mark.parametrize("name", ["V1Pod", "CoreV1Api", "ApiClient", "ApiException"])
def test_every_class_is_found_when_it_is_asked_for(name: str) -> None:
    program = f"import mizar_kube; from kubernetes_asyncio import client; print(client.{name})"
    assert name in printed(program)


def test_a_name_that_is_not_there_is_refused() -> None:
    program = "import mizar_kube; from kubernetes_asyncio import client"
    assert printed(f"{program}; print(hasattr(client, 'V0Pod'))") == "False"
