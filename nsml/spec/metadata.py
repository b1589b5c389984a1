"""Metadata keys of calls."""

from __future__ import annotations

REVISION = "nsml-revision"
"""In a request: the newest store revision that the caller has seen, in decimal. Any control plane
answers with nothing older. In the trailers of a response: its revision."""

LEADER = "leader"
"""In the trailers of a refusal: the leader's address for agents."""

RELAY = "nsml-relay"
"""In a request of an agent that cannot reach the leader, "1": relay this stream to it."""

SSH_KEY = "nsml-ssh-key"
"""In a request of a jump host, or of a control plane that relays one: SHA-256 of the public key of the user it
calls for, in hexadecimal. It is accepted from no other caller."""
