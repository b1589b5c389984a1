"""Dockerfiles: what is read from them, and what no node builds."""

from __future__ import annotations

import pytest

from nsml.packages.dockerfile import (
    MOST_EXPANDED_CHARACTERS,
    DockerfileRefused,
    arguments_error,
    declared,
    environment_pairs,
    expand,
    is_path,
    program_of,
    read_dockerfile,
    split_words,
)
from tests.support.dockerfile_forms import FORMS, REFUSED, VARIABLES, WHOLE_FORMS

WHOLE = """\
# syntax=docker/dockerfile:1
ARG TAG=3.12
FROM python:${TAG}-slim AS Build
ARG WHO
ENV GREETING="hi $WHO" PLACE=/opt/a\\ b
RUN --mount=type=cache,target=/root/.cache pip install \\
    # pinned

    numpy \\
    && true
FROM build
COPY --from=0 --chown=me:me /a "/b c" /to/
COPY --from=busybox:1 /bin/busybox /bin/
COPY ["x y", "$PLACE/"]
CMD ["python"]
"""


def test_a_dockerfile_is_read_as_docker_reads_it() -> None:
    found = read_dockerfile(WHOLE, {"WHO": "kim"})
    first, second = found.stages
    assert (first.image, second.image, second.follows) == ("python:3.12-slim", "", 0)
    assert found.images == ["python:3.12-slim", "busybox:1"]
    _, environment, run = first.steps
    assert environment_pairs(environment, {"WHO": "kim"}) == {
        "GREETING": "hi kim",
        "PLACE": "/opt/a b",
    }
    assert run.line == 6
    _, _, command = program_of(run, ["/bin/sh", "-c"])
    assert " ".join(command.split()) == "pip install numpy && true"
    assert len(found.notes) == 1
    stage, image, own, _ = second.steps
    copied = found.copied(stage, 1, {})
    assert (copied.sources, copied.target, copied.origin) == (["/a", "/b c"], "/to/", 0)
    assert copied.owner == "me:me"
    assert found.copied(image, 1, {}).origin == "busybox:1"
    assert found.copied(own, 1, {"PLACE": "/opt"}).target == "/opt/"
    assert read_dockerfile("from a\nrun x\n", {}).stages[0].steps[0].word == "RUN"
    assert read_dockerfile(WHOLE, {"TAG": "3.11", "WHO": ""}).stages[0].image == "python:3.11-slim"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no FROM"),
        ("RUN x", "line 1: it begins with FROM"),
        ("FROM scratch", "scratch"),
        ("FROM ../x", "not the name"),
        ("FROM sha256:" + "a" * 64, "not the name"),
        ("ARG B=127.0.0.1/x y\nFROM a\nFROM $B z", "AS NAME"),
        ("FROM a\nRUN --mount=type=secret,id=x cat /run/secrets/x", "--mount=type=secret"),
        ("FROM a\nRUN --mount=type=bind,source=/,target=/h true", "--mount=type=bind"),
        ("FROM a\nRUN --mount=type=cache --mount=type=ssh true", "--mount=type=ssh"),
        ("FROM a\nRUN --security=insecure true", "--security is not allowed"),
        ("FROM a\nRUN --network=host true", "--network is not allowed"),
        ("FROM a\nADD https://169.254.169.254/ /x", "fetches nothing"),
        ("FROM a\nADD ubuntu.tar.gz /x", "unpacks no archives"),
        ("FROM a\nONBUILD ADD http://x /", "ONBUILD"),
        ("FROM a\nCOPY --from=2 /a /b", "later, or not at all"),
        ("FROM a\nCOPY --from=0 /a /b", "later, or not at all"),
        ("FROM a\nCOPY --from=$X /a /b", "without variables"),
        ("FROM a\nCOPY --from=\u00b2 /a /b", "neither a stage nor an image"),
        ("FROM a\nRUN echo \0", "NUL"),
        ("FROM a\nCOPY a", "sources and a target"),
        ("FROM a\nCOPY --chown=$(id) a b", "no owner"),
        ("FROM a\nRUN cat <<EOF\nx\nEOF", "here-documents"),
        ("# escape=`\nFROM a", "escape"),
        ("# Syntax=docker/dockerfile:1-labs\nFROM a", "line 1: syntax=docker/dockerfile:1-labs"),
        ("#syntax=lab/frontend\nFROM a", "syntax=lab/frontend is not built"),
        ("FROM a\nARG TARGETARCH\nRUN x", "line 2: ARG TARGETARCH has no value"),
        ("FROM a\nCOPY --parents a b", "--parents is not allowed"),
        ("FROM a\nENV B=${A#x} C=1", "line 2: ${A#x} is not replaced"),
        ("FROM a\nWORKDIR ${A:-${B%x}}", "line 2: ${B%x} is not replaced"),
        ('FROM a\nCOPY ["a", "${B/x/y}"]', "line 2: ${B/x/y} is not replaced"),
        ("FROM a\nWORKDIR " + "${A:-" * 10 + "}" * 10, "over 8 variables in one another"),
        ("FROM a\nENV A=1 it's=2", "line 2: a quote is not closed"),
        ("FROM a\nENV A=${A:-'x}", "a quote is not closed"),
        ("FROM a\nENV A=1 B", "ENV has NAME=VALUE"),
        ("FROM a\nENV A", "ENV has NAME=VALUE"),
        ("FROM a\nARG 1=2", "no name"),
        ("FROM a\nPRIVILEGED x", "no instruction"),
        ("FROM a\n" + "RUN x\n" * 127, "over 127 instructions"),
        ("FROM a\n" * 17, "over 16 stages"),
        ("FROM a\n#" + "x" * (64 << 10), "over 64 KiB"),
    ],
)
def test_what_no_node_builds_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(DockerfileRefused) as refused:
        read_dockerfile(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "# syntax=docker.io/docker/dockerfile:1.7\n# check=skip=all\nFROM a",
        f"# syntax=docker/dockerfile:1@sha256:{'a' * 64}\nFROM a",
        "ARG TARGETARCH=arm64\nFROM a\nARG TARGETARCH",
        "FROM a\nENV A=${B:-c} D='\\${E#f}'\nRUN echo ${A#x} ${TARGETARCH}",
        "FROM a\nENV D='${E%f}' F=\"\\${E%f}\"\nWORKDIR '${A/x/y}'",
        "FROM a\nCMD echo ${A#x}",
    ],
)
def test_syntax_of_buildkit_that_changes_nothing_is_read(text: str) -> None:
    assert read_dockerfile(text).images == ["a"]


def test_a_platform_is_left_out_with_a_note() -> None:
    (note,) = read_dockerfile("FROM --platform=$BUILDPLATFORM a").notes
    assert "--platform" in note


def test_an_address_behind_a_variable_is_refused_when_it_is_known() -> None:
    made = read_dockerfile("FROM a\nARG U\nADD $U /x", {"U": "http://10.0.0.1/"})
    with pytest.raises(DockerfileRefused, match="fetches nothing"):
        made.copied(made.stages[0].steps[1], 0, {"U": "http://10.0.0.1/"})


def test_an_argument_that_no_arg_takes_is_refused() -> None:
    with pytest.raises(DockerfileRefused, match="no ARG WHOM"):
        read_dockerfile("FROM a\nARG WHO", {"WHOM": "x"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b", ["a", "b"]),
        ("'a $X' \"b $X\" c\\ d", ["a $X", "b x", "c d"]),
        ('""', [""]),
        ("$X${X}${Y:-none}${X:+some}\\$X", ["xxnonesome$X"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[str]) -> None:
    assert split_words(text, {"X": "x"}) == words


def test_values_are_read_as_docker_reads_them() -> None:
    assert {text: expand(text, VARIABLES) for text in FORMS} == FORMS
    for text in REFUSED:
        with pytest.raises(DockerfileRefused):
            expand(text, VARIABLES)
    # as BuildKit, which has them without the colon, too
    assert expand("${U-y}${E-y}${E+z}${U+z}${E?y}", VARIABLES) == "yz"


@pytest.mark.parametrize("text", WHOLE_FORMS)
def test_a_value_that_is_no_words_may_have_spaces(text: str) -> None:
    file = read_dockerfile(f"FROM a\nENV A {text}\nWORKDIR {text}\nUSER {text}")
    pair, *whole = file.stages[0].steps
    assert environment_pairs(pair, VARIABLES) == {"A": WHOLE_FORMS[text]}
    assert [expand(one.text, VARIABLES) for one in whole] == [WHOLE_FORMS[text]] * 2
    with pytest.raises(DockerfileRefused):
        read_dockerfile(f"FROM a\nENV A={text}")


def test_several_pairs_are_those_of_one_instruction() -> None:
    file = read_dockerfile(
        "FROM a\nARG B='x y' C \"D\"=$B\nENV \"E\"=1 $B=2\nENV F 'a $C'  b\nENV E=\\\\\nENV F=2"
    )
    several, pairs, old, *ends = file.stages[0].steps
    assert declared(several, {"B": "b"}, {"C": "c"}) == {"B": "x y", "C": "c", "D": "b"}
    assert environment_pairs(pairs, {"B": "b"}) == {"E": "1", "b": "2"}
    assert environment_pairs(old, {}) == {"F": "a $C  b"}
    assert [environment_pairs(one, {}) for one in ends] == [{"E": "\\"}, {"F": "2"}]


def test_expansion_is_done_once() -> None:
    assert expand("$A", {"A": "$B", "B": "b"}) == "$B"


def test_what_variables_come_to_is_bounded_before_it_is_put_together() -> None:
    tenfold = "\n".join(["ARG A=xxxxxxxxxx", *[f"ARG A={'$A' * 10}"] * 40])
    with pytest.raises(DockerfileRefused, match=r"line 5: .* over 64 Ki characters"):
        read_dockerfile(f"{tenfold}\nFROM a")
    big = {"A": "x" * (MOST_EXPANDED_CHARACTERS // 2 + 1)}
    stage = read_dockerfile(
        "FROM a\nENV " + " ".join(f"A{n}=$A" for n in range(2000)) + "\nENV B $A$A"
        '\nCOPY ["' + '", "'.join(["$A"] * 2000) + '"]\nCOPY --chown=$A$A a b\nENV C=$A'
    )
    several, old, listed, owned, one = stage.stages[0].steps
    for step in (several, old):
        with pytest.raises(DockerfileRefused, match="over 64 Ki"):
            environment_pairs(step, big)
    for step in (listed, owned):
        with pytest.raises(DockerfileRefused, match="over 64 Ki"):
            stage.copied(step, 0, big)
    others = {f"V{number}": big["A"] for number in range(16)}
    assert environment_pairs(one, big)["C"] == big["A"]
    with pytest.raises(DockerfileRefused, match="variables have over 512 Ki"):
        environment_pairs(one, {**others, **big})


def test_a_list_has_nothing_that_no_program_can_have() -> None:
    for escape in ("\\u0000", "\\ud800"):
        (step,) = read_dockerfile(f'FROM a\nRUN ["true", "{escape}"]').stages[0].steps
        assert program_of(step, ["sh"]) == ["sh", step.text]


@pytest.mark.parametrize("path", ["", "/a", "a/../b", "./a", "a//b", "a\nb", "a\x1bb", "x" * 1025])
def test_a_path_stays_in_the_folder(path: str) -> None:
    assert not is_path(path)
    assert is_path("docker/train.Dockerfile")


def test_values_of_arguments_are_bounded() -> None:
    assert arguments_error({"A": "1"}) == ""
    assert arguments_error({"A B": "1"})
    assert arguments_error({"A": "x" * 5000})
    assert arguments_error({f"A{n}": "" for n in range(65)})
