"""ARCHITECTURE.md and its picture name the existing folders, as do README.md and the lists that it
points to; and ARCHITECTURE.md stays short."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MADE_HERE = {"build", "__pycache__"}
ROW = re.compile(r"^\| `([\w/]+)` \| (.+) \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"\]\(([\w-]+)(?:/[\w./-]*)?\)")


def section(page: str, title: str) -> str:
    """The text below a heading of the page."""
    return (ROOT / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


PAGE_WORDS = 1000
LISTED = {path: holds for path, holds, _ in ROW.findall(section("ARCHITECTURE.md", "Folders"))}


def folders(path: str | Path) -> set[str]:
    """The folders that contain a file of the repository."""
    found = (one for one in (ROOT / path).iterdir() if one.is_dir())
    return {one.name for one in found if not one.name.startswith(".") and _has_files(one)}


def _has_files(folder: Path) -> bool:
    if folder.name in MADE_HERE:
        return False
    return any(_has_files(one) if one.is_dir() else True for one in folder.iterdir())


def linked(page: str | Path) -> set[str]:
    """The first folder of each relative link."""
    path = ROOT / page
    return set(LINK.findall(path.read_text())) if path.is_file() else set()


def test_each_folder_has_a_row() -> None:
    assert {path.partition("/")[0] for path in LISTED} == folders(".")


@pytest.mark.parametrize("path", LISTED)
def test_a_row_names_the_folders_in_its_own(path: str) -> None:
    """Or the folder's README.md does."""
    named = set(re.findall(r"`([\w-]+)/`", LISTED[path]))
    assert named <= folders(path), "there is no such folder"
    assert folders(path) <= named | linked(f"{path}/README.md"), "name it in ARCHITECTURE.md"


@pytest.mark.parametrize("path", [path for path in LISTED if "/" in path])
def test_no_folder_lies_between_two_rows(path: str) -> None:
    above, _, name = path.rpartition("/")
    assert above in LISTED or folders(above) == {name}


@pytest.mark.parametrize("path", ["tests", "tests/programs"])
def test_the_lists_of_tests_and_programs_name_each_folder(path: str) -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\) \|", (ROOT / path / "README.md").read_text(), re.M)
    assert all(name == folder for name, folder in rows)
    assert {folder for _, folder in rows} == folders(path)


def test_the_architecture_is_one_page() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= PAGE_WORDS


def test_the_picture_names_the_folders_of_what_runs() -> None:
    """All that a cluster runs or stores is made from one of these."""
    picture = (ROOT / "docs" / "picture.svg").read_text()
    named = re.findall(r'class="folder">([^<]+)<', picture)
    tops = {one.strip().partition("/")[0] for names in named for one in names.split(",")}
    assert tops == {"core", "kube", "operator", "nodeagent", "shim", "crds"} & folders(".")
    assert len(tops) == 6


def test_the_readme_names_each_folder() -> None:
    assert folders(".") <= linked("README.md")


@pytest.mark.parametrize(
    ("page", "names"),
    [("docs/share-pod.md", r"[a-z_]+(?:/[a-z_.-]+)+"), ("docs/where-to-look.md", r"[a-z_./-]+")],
)
def test_the_files_that_are_named_exist(page: str, names: str) -> None:
    """Files are named by a path or its end; docs/where-to-look.md also names them without a folder,
    up to its section on logs."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    known = {f"/{path}" for path in files.split()}
    ends = {path[at:] for path in known for at, char in enumerate(path) if char == "/"}
    ends |= {folder for end in ends for folder in _folders_above(end)}
    text = (ROOT / page).read_text().partition("All programs log")[0]
    named = re.findall(f"`({names})`", text)
    assert len(named) > 5
    assert [one for one in named if not {f"/{one}", f"/{one}.py"} & ends] == []


def _folders_above(end: str) -> list[str]:
    parts = end.split("/")
    return ["/".join(parts[:length]) for length in range(2, len(parts))]


def test_make_prints_each_row() -> None:
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True)
    assert set(re.findall(r"^  ([\w/]+): ", done.stdout, re.MULTILINE)) == set(LISTED)
