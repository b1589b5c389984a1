"""Keys of the metadata that calls carry beside their messages."""

from __future__ import annotations

REVISION = "nsml-revision"
"""In a request: the newest revision of the store that the caller has seen, in decimal. The control plane
answers with nothing older, whichever one it is. In the trailers of an answer: how new it is."""

LEADER = "leader"
"""In the trailers of a refusal: the address at which agents reach the leader."""

RELAY = "nsml-relay"
"""In a request of an agent that cannot reach the leader, "1": pass this stream on to it."""

SSH_KEY = "nsml-ssh-key"
"""In a request of a jump host, or of a control plane that passes one on: SHA-256 of the public key for whose user it
calls, in hexadecimal. Of nobody else it is accepted."""
