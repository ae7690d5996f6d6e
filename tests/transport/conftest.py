"""Servers of the tests here."""

import pytest
from echo_server import EchoServer


@pytest.fixture
def make_server():
    """Makes echo servers that are closed when the test ends."""
    servers = []

    def make(*args, **options):
        servers.append(EchoServer(*args, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
