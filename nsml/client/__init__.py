"""The typed asyncio client of the control plane: calls, streams that resume, errors by name.

    context = contexts.choose(contexts.load(os.environ), os.environ)
    async with connect(context) as client:
        session = await client.sessions.get("@last")

Importing the package loads nothing: `nsml.client.errors` and `nsml.client.contexts` are light,
`nsml.client.calls` loads gRPC.
"""
