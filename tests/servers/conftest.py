"""A training server for CartPole, and a connection to it that has said nothing yet."""

from __future__ import annotations

from uuid import uuid4

import pytest
from remote_parts import cartpole_server

from relayrl.transport.client_endpoint import ClientEndpoint


@pytest.fixture
def server(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000) as made:
        yield made


@pytest.fixture
def client(server):
    endpoint = ClientEndpoint(server.address, client_id=uuid4())
    yield endpoint
    endpoint.close()
