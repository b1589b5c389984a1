"""image: the container images that nodes have."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import IMAGE, NODE, is_glob
from cli.choosing_nodes import AT_ONCE, look_at, names_of, nodes_words
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nsml.client.calls import Client
    from nsml.v1.nodes_pb2 import Node
    from nsml.view.images import ImageAnswer, ImageOnNode

_ASK_EVERY_S = 1.0
_TELL_EVERY_S = 5.0
_SILENT_FOR_S = 60.0
"""How long a node that pulls may not answer."""


@click.group("image", cls=Group)
def image() -> None:
    """Container images: what nodes have of what sessions may name."""


def _nodes_option(text: str) -> Callable[[Any], Any]:
    return click.option(
        "--node", "nodes", multiple=True, type=NODE, metavar="NODE", help=f"{text}; repeatable."
    )


@command("ls", reads=True, examples=["nsml image ls", "nsml image ls 'gpu-*' -j"])
@click.argument("names", nargs=-1, type=NODE, metavar="[NODE...]")
@pass_app
def ls(app: App, *, names: tuple[str, ...]) -> None:
    """List the images on nodes that sessions may name there.

    NODE is a name or a glob. Sessions are placed where their image is, of nodes that are as good. An image on no
    node is pulled when a session asks for it; nsml image pull does that before.
    """
    from nsml.v1 import nodes_pb2
    from nsml.view.images import COLUMNS, ImageOnNode, record

    write_list(
        app,
        app.call(lambda client: _on_nodes(client, names)),
        columns=COLUMNS,
        record=record,
        none="no images on nodes: none runs containers, or none has an image that sessions may name",
        blank=ImageOnNode(node="", image=nodes_pb2.NodeImage()),
    )


async def _on_nodes(client: Client, words: Sequence[str]) -> list[ImageOnNode]:
    from nsml.view.images import ImageOnNode

    answers = await look_at(client, await names_of(client, words or ["*"]))
    return [
        ImageOnNode(node=answer.node.name, image=one) for answer in answers for one in answer.images
    ]


@command(
    "pull",
    reads=True,
    examples=[
        "nsml image pull pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime",
        "nsml image pull lab/train@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "nsml image pull lab/train:3 --node 'rack2-*'",
    ],
)
@click.argument("name", type=IMAGE, metavar="IMAGE")
@_nodes_option("Only this node, or nodes that fit a glob")
@click.option("--dry-run", is_flag=True, help="List the nodes that would be asked, and do nothing.")
@pass_app
def pull(app: App, *, name: str, nodes: tuple[str, ...], dry_run: bool) -> int:
    """Fetch an image on nodes before a session needs it.

    IMAGE is NAME[:TAG][@DIGEST], as for nsml run --image. Without --node all connected nodes with containers
    fetch it. The rules are those of a session that names it: the node's allowed images, limits and room on
    disk. Ctrl-C ends the pulls soon after. Exit code 9: some nodes have it now, others do not.
    """
    from nsml.v1.resources_pb2 import ImageStatus
    from nsml.view.images import ANSWER_COLUMNS, ImageAnswer, answer_record

    chosen = app.call(lambda client: _with_containers(client, nodes))
    if dry_run:
        app.say(f"would pull {name} on {nodes_words(chosen)}")
        for one in chosen:
            app.write(one)
        app.say("nothing was done (--dry-run)")
        return ExitCode.OK
    app.say(f"pulling {name} on {nodes_words(chosen)}")
    answers = app.call(partial(_pulled, app=app, image=name, nodes=chosen))
    write_list(
        app,
        answers,
        columns=ANSWER_COLUMNS,
        record=answer_record,
        name="node",
        blank=ImageAnswer(node="", status=ImageStatus()),
    )
    return _code(answers)


@command(
    "rm",
    reads=True,
    examples=["nsml image rm lab/train:3", "nsml image rm lab/train:3 --node gpu-7 -y"],
)
@click.argument("name", type=IMAGE, metavar="IMAGE")
@_nodes_option("Only from this node, or nodes that fit a glob")
@confirmed
@pass_app
def rm(app: App, *, name: str, nodes: tuple[str, ...]) -> int:
    """Remove an image from nodes; administrators. Asks first.

    It stays where a session uses it, and where it was before nsml pulled it. Without --node it is removed from all
    nodes that list it (nsml image ls). A session that names it later has it pulled again.
    """
    from nsml.v1.resources_pb2 import ImageStatus
    from nsml.view.images import ANSWER_COLUMNS, ImageAnswer, answer_record

    chosen = app.call(lambda client: _having(client, name, nodes))
    copies = [f"{name} on {node}" for node in chosen]
    if not confirm_names(app, "image rm", copies, noun="image"):
        return ExitCode.OK
    answers = app.call(partial(_removed, image=name, nodes=chosen))
    write_list(
        app,
        answers,
        columns=ANSWER_COLUMNS,
        record=answer_record,
        name="node",
        blank=ImageAnswer(node="", status=ImageStatus()),
    )
    return _code(answers)


def _code(answers: Sequence[ImageAnswer]) -> ExitCode:
    done = sum(one.is_done for one in answers)
    if done == len(answers):
        return ExitCode.OK
    return ExitCode.PARTLY if done else ExitCode.FAILED


async def _with_containers(client: Client, words: Sequence[str]) -> list[str]:
    """The nodes that are asked: those named, else all that could fetch an image now."""
    from nsml.v1.nodes_pb2 import NODE_STATE_SILENT

    if words:
        found = await look_at(client, await names_of(client, words))
        return [one.node.name for one in found]
    able = [
        one.name
        for one in await client.nodes.every()
        if _has_containers(one) and one.state != NODE_STATE_SILENT
    ]
    if not able:
        raise CommandError(
            "no connected node runs containers", code=ExitCode.NOT_FOUND, advice="nsml node ls"
        )
    return able


def _has_containers(node: Node) -> bool:
    from nsml.v1.resources_pb2 import ISOLATION_CONTAINER

    return node.isolation == ISOLATION_CONTAINER


async def _having(client: Client, image: str, words: Sequence[str]) -> list[str]:
    """The nodes that list the image, of those that are meant; and those that are named outright.

    Raises CommandError (NOT_FOUND) where there is none.
    """
    from nsml.images import whole_reference

    named = [word for word in words if not is_glob(word)]
    whole = whole_reference(image)
    looked = await look_at(client, await names_of(client, words or ["*"]))
    having = [
        one.node.name
        for one in looked
        if one.node.name in named or any(held.name == whole for held in one.images)
    ]
    if not having:
        raise CommandError(
            f"no node lists image {image}", code=ExitCode.NOT_FOUND, advice="nsml image ls"
        )
    return having


async def _pulled(
    client: Client, *, app: App, image: str, nodes: Sequence[str]
) -> list[ImageAnswer]:
    from nsml.concurrency import each_at_once

    return await each_at_once(
        nodes, lambda node: _pulled_on(client, app, image, node), most=len(nodes)
    )


async def _pulled_on(client: Client, app: App, image: str, node: str) -> ImageAnswer:
    """Ask a node until its pull has ended; says how far it is."""
    from nsml.client.errors import ClientError, NotSignedIn, Unavailable
    from nsml.v1 import resources_pb2 as pb
    from nsml.view.images import ImageAnswer, answer_word

    status = pb.ImageStatus(image=image, state=pb.IMAGE_STATE_ABSENT)
    told, told_at = "", client.clock.monotonic()
    heard_at = told_at
    while True:
        try:
            if status.state == pb.IMAGE_STATE_ABSENT:  # at first, and after a restart of its agent
                status = await client.nodes.pull_image(node, image)
            else:
                status = await client.nodes.image_pull(node, image)
            heard_at = client.clock.monotonic()
        except NotSignedIn:
            raise
        except ClientError as error:
            is_late = client.clock.monotonic() > heard_at + _SILENT_FOR_S
            has_begun = status.state == pb.IMAGE_STATE_PULLING
            if not isinstance(error, Unavailable) or not has_begun or is_late:
                why = ": ".join(filter(None, [str(error), error.why]))
                return ImageAnswer(node=node, status=pb.ImageStatus(image=image), why=why)
        if status.state not in {pb.IMAGE_STATE_PULLING, pb.IMAGE_STATE_ABSENT}:
            answer = ImageAnswer(node=node, status=status)
            app.say(f"{node}: {answer_word(answer)}")
            return answer
        now = client.clock.monotonic()
        if status.words not in {"", told} and now >= told_at + _TELL_EVERY_S:
            app.say(f"{node}: {status.words}")
            told, told_at = status.words, now
        await client.clock.sleep(_ASK_EVERY_S)


async def _removed(client: Client, *, image: str, nodes: Sequence[str]) -> list[ImageAnswer]:
    from nsml.client.errors import ClientError, Denied, NotSignedIn
    from nsml.concurrency import each_at_once
    from nsml.v1.resources_pb2 import ImageStatus
    from nsml.view.images import ImageAnswer

    async def on(node: str) -> ImageAnswer:
        try:
            return ImageAnswer(node=node, status=await client.nodes.remove_image(node, image))
        except (Denied, NotSignedIn):
            raise
        except ClientError as error:
            why = ": ".join(filter(None, [str(error), error.why]))
            return ImageAnswer(node=node, status=ImageStatus(image=image), why=why)

    return await each_at_once(nodes, on, most=AT_ONCE)


for _command in (ls, pull, rm):
    image.add_command(_command)
