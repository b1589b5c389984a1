import pytest

from nsml.client.connect import connect
from nsml.client.contexts import Context
from tests.unit.nsml.client.contract_server import TOKEN, ContractServer


@pytest.fixture
def server():
    with ContractServer() as running:
        yield running


@pytest.fixture
def context(server, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    return Context(name="test", server=server.address, token_file=str(token))


@pytest.fixture
async def client(context):
    async with connect(context) as connected:
        yield connected
