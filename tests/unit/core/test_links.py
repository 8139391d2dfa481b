"""Each relative link of a page leads to a file, and to a heading of it where it names one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def pages() -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(listed, cwd=ROOT, text=True, capture_output=True, check=True)
    return [one for one in found.stdout.splitlines() if (ROOT / one).is_file()]


def text(page: Path) -> str:
    """The page without its blocks of code."""
    return CODE.sub("", page.read_text())


def anchor(heading: str) -> str:
    """The anchor that GitHub and GitLab give to a heading."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(one) for one in re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)}


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(text(page)):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if re.match("[a-z]+:", link):
            continue
        if not target.exists():
            yield f"{link}: there is no such file"
        elif heading and target.suffix == ".md" and heading not in anchors(target):
            yield f"{link}: there is no such heading"


@pytest.mark.parametrize("page", pages())
def test_each_link(page: str) -> None:
    assert list(broken(ROOT / page)) == []


def test_headings_become_anchors() -> None:
    assert anchor('On call, with "each alert"') == "on-call-with-each-alert"
    assert anchor("`helm template | kubectl apply`") == "helm-template--kubectl-apply"
    assert anchor("[Isolation](x.md): what's next?") == "isolation-whats-next"
