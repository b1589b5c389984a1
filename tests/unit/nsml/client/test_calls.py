import grpc
import pytest

from nsml.client import errors
from nsml.client.connect import connect
from nsml.client.contexts import Context
from nsml.v1 import accounts_pb2, projects_pb2
from nsml.v1 import sessions_pb2 as pb


async def test_every_call_carries_the_token(client, server):
    assert (await client.accounts.caller()).user.name == "kim"
    server.state.tokens.clear()
    with pytest.raises(errors.NotSignedIn) as caught:
        await client.accounts.caller()
    assert caught.value.reason == "NOT_SIGNED_IN"


async def test_listing_joins_the_pages(client, server):
    for number in range(5):
        server.state.add(f"kim/mnist/{number + 1}")
    names = [session.name async for session in client.sessions.every(pb.SessionFilter())]
    assert names == [f"kim/mnist/{number}" for number in (5, 4, 3, 2, 1)]
    limited = [s.name async for s in client.sessions.every(pb.SessionFilter(), limit=3)]
    assert limited == names[:3]


async def test_lists_are_read_page_by_page(client, server):
    """Projects, users, and what is kept for each, the most first: in whatever order pages have it."""
    names = [f"p{number}" for number in range(5)]
    server.state.projects.clear()
    for name in names:
        await client.projects.create(name, projects_pb2.ProjectSettings())
        await client.accounts.create_user(name)
        server.state.further_usage.append(
            accounts_pb2.Usage(user=name, kept_bytes=1_000 if name in {"p1", "p3"} else 5)
        )
    assert [one.name for one in await client.projects.every()] == names
    users = [one.name for one in await client.accounts.users()]
    assert users == sorted(server.state.users)
    assert users[-5:] == names
    usage = [one.user for one in await client.accounts.every_usage()]
    assert usage == ["p1", "p3", "kim", "p0", "p2", "p4", "lee"]
    calls = server.state.calls
    assert (calls.count("ListProjects"), calls.count("ListUsage")) == (3, 4)
    assert calls.count("ListUsers") == (len(users) + 1) // 2


@pytest.mark.parametrize("is_older", [False, True])
async def test_a_project_narrows_whatever_the_version_of_the_control_plane(
    client, server, is_older
):
    server.state.knows_no_project = is_older
    for number in range(8):
        server.state.add(f"kim/mnist/{number + 1}", project="vision" if number % 4 == 0 else "")
    chosen = pb.SessionFilter(project="vision")
    for limit, names in ((None, ["kim/mnist/5", "kim/mnist/1"]), (1, ["kim/mnist/5"])):
        found = [session.name async for session in client.sessions.every(chosen, limit=limit)]
        assert found == names
    own = pb.SessionFilter(project="kim")
    assert len([session async for session in client.sessions.every(own)]) == 6


@pytest.mark.parametrize("is_older", [False, True])
async def test_steps_of_submissions_are_left_out_whatever_the_version_of_the_control_plane(
    client, server, is_older
):
    server.state.knows_no_project = is_older
    for number in range(8):
        stage = pb.SESSION_STAGE_UNSPECIFIED if number % 4 == 0 else pb.SESSION_STAGE_PREDICT
        server.state.add(f"kim/mnist/{number + 1}", spec=pb.SessionSpec(stage=stage))
    chosen = pb.SessionFilter(without_submission_steps=True)
    for limit, names in ((None, ["kim/mnist/5", "kim/mnist/1"]), (1, ["kim/mnist/5"])):
        found = [session.name async for session in client.sessions.every(chosen, limit=limit)]
        assert found == names


async def test_a_lost_answer_does_not_submit_twice(client, server):
    server.state.fail_next["CreateSession"] = grpc.StatusCode.UNAVAILABLE
    request = pb.CreateSessionRequest(request_id="r1", spec=pb.SessionSpec(argv=["true"]))
    session = await client.sessions.create(request)
    assert [session.name] == [s.name for s in server.state.sessions.values()]
    assert server.state.calls.count("CreateSession") == 2


async def test_errors_come_back_by_name_with_why_and_try(client):
    spec = pb.SessionSpec(argv=["true"])
    spec.resources.gpu_thousandths = 9000
    with pytest.raises(errors.CannotEverFit) as caught:
        await client.sessions.create(pb.CreateSessionRequest(request_id="r", spec=spec))
    error = caught.value
    assert (error.message, error.why, error.advice) == (
        "no node has 9 GPUs",
        "the largest has 8",
        "nsml run -g 8",
    )


async def test_an_ambiguous_reference_lists_its_candidates(client, server):
    server.state.add("kim/mnist/1")
    server.state.add("kim/cifar/1")
    with pytest.raises(errors.AmbiguousReference) as caught:
        await client.sessions.get("1")
    assert caught.value.candidates == ("kim/cifar/1", "kim/mnist/1")


async def test_ends_and_removals_conflict_by_name(client, server):
    live = server.state.add("kim/mnist/1")
    with pytest.raises(errors.StillLive):
        await client.sessions.remove(live.id)
    await client.sessions.stop(live.id)
    with pytest.raises(errors.AlreadyEnded):
        await client.sessions.stop(live.id)
    assert await client.sessions.remove(live.id) == "kim/mnist/1"
    with pytest.raises(errors.NotFound):
        await client.sessions.get(live.id)


async def test_a_request_over_the_limit_is_refused_before_it_is_sent(client, server):
    spec = pb.SessionSpec(argv=["x" * (5 << 20)])
    with pytest.raises(errors.TooLarge):
        await client.sessions.create(pb.CreateSessionRequest(request_id="r", spec=spec))
    assert "CreateSession" not in server.state.calls


async def test_nobody_there_is_unavailable():
    async with connect(Context(name="x", server="127.0.0.1:1")) as client:
        with pytest.raises(errors.Unavailable, match=r"^Connection refused$"):
            await client.accounts.caller()


async def test_no_plaintext_beyond_loopback(server, tmp_path):
    """The same server under a name that is not loopback's: only TLS is tried."""
    async with connect(Context(name="x", server=f"0.0.0.0:{server.port}")) as client:
        with pytest.raises(errors.Unavailable):
            await client.accounts.caller()
    assert server.state.calls == []


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_every_status_has_a_name(status):
    class Failed:
        def code(self):
            return status

        def details(self):
            return "said"

        def trailing_metadata(self):
            return ()

    assert isinstance(errors.translate(Failed()), errors.ClientError)


def test_broken_details_are_no_further_trouble():
    class Failed:
        def code(self):
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self):
            return "Received message larger than max (5 vs. 4)"

        def trailing_metadata(self):
            return (("grpc-status-details-bin", b"\xff\xff\xff"),)

    assert isinstance(errors.translate(Failed()), errors.TooLarge)


@pytest.mark.parametrize(
    ("status", "details", "said"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)", "the connection broke"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Stream removed (ping timeout)",
            "the control plane does not answer",
        ),
        # of one that breaks within a message: the server has not failed
        (grpc.StatusCode.INTERNAL, "Internal error from Core", "the connection broke"),
    ],
)
def test_a_connection_that_breaks_is_said_in_a_sentence(status, details, said):
    """Another control plane may answer; what the call did is not known."""

    class Failed:
        def code(self):
            return status

        def details(self):
            return details

        def trailing_metadata(self):
            return ()

    error = errors.translate(Failed())
    assert isinstance(error, errors.Unavailable)
    assert not error.is_undone
    assert str(error) == said


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("Domain name not found", "there is no host gpu.example"),
        ("DNS query cancelled", "no resolver answers for gpu.example (DNS query cancelled)"),
    ],
)
def test_a_name_without_an_address_is_said_in_a_sentence(why, said):
    class Failed:
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return (
                "errors resolving gpu.example:18553: [field:hostname lookup error:"
                f"address lookup failed for gpu.example:18553: {why}]"
            )

        def trailing_metadata(self):
            return ()

    assert str(errors.translate(Failed())) == said
