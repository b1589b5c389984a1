"""image: build, list, pull and remove container images on nodes, and log in at their registries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import IMAGE_ON_NODES, NODE, is_glob
from cli.cluster.node_targets import AT_ONCE, look_at, names_of, nodes_words
from cli.cluster.registry_logins import login, logins, logout
from cli.confirmation import confirm_names, confirmed
from cli.exits import CommandError, ExitCode
from cli.group import Group, command, pass_app
from cli.output import write_list
from cli.sessions.image_build import build

if TYPE_CHECKING:
    from asyncio import Semaphore
    from collections.abc import Callable, Sequence
    from typing import Any

    from nsml.client.calls import Client
    from nsml.client.errors import ClientError
    from nsml.v1.nodes_pb2 import Node
    from nsml.view.images import ImageAnswer, ImageOnNode

_POLL_EVERY_S, _MOST_POLLS_PER_S = 1.0, 32
_NODES_AT_ONCE = 480
"""Each is polled every 15 s: agents cancel pulls not polled for 60 s."""
_PROGRESS_EVERY_S = 5.0
_UNREACHABLE_FOR_S = 60.0
"""Time after which an unreachable node's pull counts as failed."""


@click.group("image", cls=Group)
def image() -> None:
    """Container images on nodes, and logins at their registries."""


def _nodes_option(text: str) -> Callable[[Any], Any]:
    return click.option(
        "--node", "nodes", multiple=True, type=NODE, metavar="NODE", help=f"{text}; repeatable."
    )


@command("ls", reads=True, examples=["nsml image ls", "nsml image ls 'gpu-*' -j"])
@click.argument("names", nargs=-1, type=NODE, metavar="[NODE...]")
@pass_app
def ls(app: App, *, names: tuple[str, ...]) -> None:
    """List the images that sessions may use, by node.

    NODE is a name or a glob. The scheduler prefers nodes that have a session's image. An image on
    no node is pulled when a session asks for it; nsml image pull does that in advance.
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
@click.argument("name", type=IMAGE_ON_NODES, metavar="IMAGE")
@_nodes_option("Only this node, or nodes that fit a glob")
@click.option(
    "--dry-run", is_flag=True, help="Print the nodes that would be asked, and do nothing."
)
@pass_app
def pull(app: App, *, name: str, nodes: tuple[str, ...], dry_run: bool) -> int:
    """Fetch an image on nodes before a session needs it.

    IMAGE is NAME[:TAG][@DIGEST], as for nsml run --image. Without --node all connected nodes with
    containers fetch it. The rules are those of a session with that image: the node's allowed
    images, limits and room on disk. Ctrl-C cancels the pulls. Exit code 9: some nodes have it,
    others do not.
    """
    chosen = app.call(lambda client: _with_containers(client, nodes))
    if dry_run:
        app.say(f"would pull {name} on {nodes_words(chosen)}")
        for one in chosen:
            app.write(one)
        app.say("nothing was done (--dry-run)")
        return ExitCode.OK
    app.say(f"pulling {name} on {nodes_words(chosen)}")
    answers = app.call(partial(_pulled, app=app, image=name, nodes=chosen, are_named=bool(nodes)))
    return _write_answers(app, answers)


@command(
    "rm",
    reads=True,
    examples=["nsml image rm lab/train:3", "nsml image rm lab/train:3 --node gpu-7 -y"],
)
@click.argument("name", type=IMAGE_ON_NODES, metavar="IMAGE")
@_nodes_option("Only from this node, or nodes that fit a glob")
@confirmed
@pass_app
def rm(app: App, *, name: str, nodes: tuple[str, ...]) -> int:
    """Remove an image from nodes; administrators. Asks first.

    Images in use, and images that were there before nsml pulled them, stay. Without --node it is
    removed from all nodes that list it (nsml image ls). A later session with that image pulls it
    again.
    """
    chosen = app.call(lambda client: _nodes_with(client, name, nodes))
    copies = [f"{name} on {node}" for node in chosen]
    if not confirm_names(app, "image rm", copies, noun="image"):
        return ExitCode.OK
    answers = app.call(partial(_removed, image=name, nodes=chosen))
    return _write_answers(app, answers)


def _write_answers(app: App, answers: Sequence[ImageAnswer]) -> ExitCode:
    """Print a row for each node; return the exit code: all, some or none of the requested nodes succeeded."""
    from nsml.v1.resources_pb2 import ImageStatus
    from nsml.view.images import ANSWER_COLUMNS, ImageAnswer, answer_record

    write_list(
        app,
        answers,
        columns=ANSWER_COLUMNS,
        record=answer_record,
        name="node",
        blank=ImageAnswer(node="", status=ImageStatus()),
    )
    asked = [one for one in answers if not one.is_skipped]
    done = sum(one.is_done for one in asked)
    if done and done == len(asked):
        return ExitCode.OK
    return ExitCode.PARTLY if done else ExitCode.FAILED


async def _with_containers(client: Client, words: Sequence[str]) -> list[str]:
    """Return the named nodes, else all connected nodes with containers; CommandError (NOT_FOUND) if there is none."""
    from nsml.v1.nodes_pb2 import NODE_STATE_FENCED, NODE_STATE_SILENT

    if words:
        found = await look_at(client, await names_of(client, words))
        return [one.node.name for one in found]
    able = [
        one.name
        for one in await client.nodes.every()
        if _has_containers(one) and one.state not in {NODE_STATE_SILENT, NODE_STATE_FENCED}
    ]
    if not able:
        raise CommandError(
            "no connected node runs containers", code=ExitCode.NOT_FOUND, advice="nsml node ls"
        )
    return able


def _has_containers(node: Node) -> bool:
    from nsml.v1.resources_pb2 import ISOLATION_CONTAINER

    return node.isolation == ISOLATION_CONTAINER


async def _nodes_with(client: Client, image: str, words: Sequence[str]) -> list[str]:
    """Return the selected nodes that list the image, and all named without a glob.

    Raises CommandError (NOT_FOUND) if there is none.
    """
    from nsml.spec.images import whole_reference

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
    client: Client, *, app: App, image: str, nodes: Sequence[str], are_named: bool
) -> list[ImageAnswer]:
    import asyncio

    from nsml.common.concurrency import each_at_once

    room = asyncio.Semaphore(AT_ONCE)
    every_s = max(_POLL_EVERY_S, min(len(nodes), _NODES_AT_ONCE) / _MOST_POLLS_PER_S)

    async def on(node: str) -> ImageAnswer:
        pull = _Pull(client, app, image, node, room, is_named=are_named)
        while (answer := await pull.ask()) is None:
            await client.clock.sleep(every_s)
        return answer

    return await each_at_once(nodes, on, most=_NODES_AT_ONCE)


class _Pull:
    """A pull on one node; it continues while its progress is polled."""

    def __init__(
        self,
        client: Client,
        app: App,
        image: str,
        node: str,
        room: Semaphore,
        *,
        is_named: bool,
    ) -> None:
        self._client = client
        self._app = app
        self._image = image
        self._node = node
        self._room = room
        self._is_named = is_named
        self._has_begun = False
        self._printed = ""
        self._printed_at = self._answered_at = client.clock.monotonic()

    async def ask(self) -> ImageAnswer | None:
        """Poll once: the result, or None while it runs; prints progress."""
        from nsml.client.errors import ClientError, NotSignedIn, StateConflict, Unavailable
        from nsml.v1.resources_pb2 import IMAGE_STATE_ABSENT, IMAGE_STATE_PULLING
        from nsml.view.images import ImageAnswer, answer_word

        nodes, now = self._client.nodes, self._client.clock.monotonic()
        try:
            async with self._room:
                ask = nodes.image_pull if self._has_begun else nodes.pull_image
                status = await ask(self._node, self._image)
        except NotSignedIn:
            raise
        except ClientError as error:
            is_late = now > self._answered_at + _UNREACHABLE_FOR_S
            if isinstance(error, Unavailable) and self._has_begun and not is_late:
                return None  # another control plane, or the agent, will be back
            is_no_place = isinstance(error, StateConflict) and not self._is_named
            return _failed_answer(self._node, self._image, error, is_skipped=is_no_place)
        self._answered_at = now
        # unknown to an agent that was restarted: begun again
        self._has_begun = status.state != IMAGE_STATE_ABSENT
        if status.state not in {IMAGE_STATE_PULLING, IMAGE_STATE_ABSENT}:
            answer = ImageAnswer(node=self._node, status=status)
            self._app.say(f"{self._node}: {answer_word(answer)}")
            return answer
        if status.words not in {"", self._printed} and now >= self._printed_at + _PROGRESS_EVERY_S:
            self._app.say(f"{self._node}: {status.words}")
            self._printed, self._printed_at = status.words, now
        return None


def _failed_answer(
    node: str, image: str, error: ClientError, *, is_skipped: bool = False
) -> ImageAnswer:
    from nsml.v1.resources_pb2 import ImageStatus
    from nsml.view.images import ImageAnswer

    why = ": ".join(filter(None, [str(error), error.why]))
    status = ImageStatus(image=image)
    return ImageAnswer(node=node, status=status, why=why, is_skipped=is_skipped)


async def _removed(client: Client, *, image: str, nodes: Sequence[str]) -> list[ImageAnswer]:
    from nsml.client.errors import ClientError, Denied, NotSignedIn
    from nsml.common.concurrency import each_at_once
    from nsml.view.images import ImageAnswer

    async def on(node: str) -> ImageAnswer:
        try:
            return ImageAnswer(node=node, status=await client.nodes.remove_image(node, image))
        except (Denied, NotSignedIn):
            raise
        except ClientError as error:
            return _failed_answer(node, image, error)

    return await each_at_once(nodes, on, most=AT_ONCE)


for _command in (ls, pull, rm, build, login, logins, logout):
    image.add_command(_command)
