"""image: the container images that nodes have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.arguments import NODE
from cli.group import Group, command, pass_app
from cli.output import write_list

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.view.images import ImageOnNode


@click.group("image", cls=Group)
def image() -> None:
    """Container images: what nodes have of what sessions may name."""


@command("ls", reads=True, examples=["nsml image ls", "nsml image ls gpu-7 -j"])
@click.argument("names", nargs=-1, type=NODE, metavar="[NODE...]")
@pass_app
def ls(app: App, *, names: tuple[str, ...]) -> None:
    """List the images on nodes that sessions may name there.

    Sessions are placed where their image is, of nodes that are as good. An image on no node is pulled when a
    session asks for it.
    """
    from nsml.v1 import nodes_pb2
    from nsml.view.images import COLUMNS, ImageOnNode, record

    async def on_nodes(client: Client) -> list[ImageOnNode]:
        chosen = names or [node.name for node in await client.nodes.every()]
        answers = [await client.nodes.get(name) for name in chosen]
        return [
            ImageOnNode(node=answer.node.name, image=one)
            for answer in answers
            for one in answer.images
        ]

    write_list(
        app,
        app.call(on_nodes),
        columns=COLUMNS,
        record=record,
        none="no images on nodes: none runs containers, or none has an image that sessions may name",
        blank=ImageOnNode(node="", image=nodes_pb2.NodeImage()),
    )


image.add_command(ls)
