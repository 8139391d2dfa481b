import pytest

from cluster.images.dockerfile import instructions, needs

TEXT = """\
# syntax=docker/dockerfile:1
ARG BASE=debian:12-slim

FROM ${BASE} AS python
RUN apt-get update \\
    # a comment in between
    && apt-get install -y python3

FROM python AS wheels
COPY --chown=0:0 pyproject.toml requirements/ /src/
RUN --mount=type=cache,target=/root/.cache/pip pip install -r /src/operator.lock

FROM gcc AS shim
COPY ["shim", "/shim"]

FROM python AS operator
COPY --from=wheels /venv /venv
COPY operator /app
ADD https://example.org/x /x

FROM python AS nodeagent
COPY --from=shim /shim/libmizar.so /usr/lib/
RUN --mount=type=bind,source=nodeagent,target=/n --mount=type=bind,from=wheels,target=/w make
"""


def test_comments_and_line_ends_do_not_matter() -> None:
    assert "RUN apt-get update      && apt-get install -y python3" in instructions(TEXT)


def test_a_target_needs_its_stages_and_what_they_copy() -> None:
    assert needs(TEXT, "operator").sources == ["pyproject.toml", "requirements/", "operator"]


def test_mounts_are_followed_too() -> None:
    sources = needs(TEXT, "nodeagent").sources
    assert sources == ["pyproject.toml", "requirements/", "shim", "nodeagent"]


def test_other_stages_are_left_out() -> None:
    lines = needs(TEXT, "operator").lines
    assert "ARG BASE=debian:12-slim" in lines
    assert not any("nodeagent" in line or "shim" in line for line in lines)


def test_the_last_stage_is_the_default() -> None:
    assert needs(TEXT) == needs(TEXT, "nodeagent")


def test_stages_without_names_have_numbers() -> None:
    text = "FROM a\nCOPY x /\nFROM b\nCOPY --from=0 /x /\n"
    assert needs(text).sources == ["x"]


@pytest.mark.parametrize("text", ["", "FROM a AS other"])
def test_an_unknown_target_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no stage operator"):
        needs(text, "operator")
