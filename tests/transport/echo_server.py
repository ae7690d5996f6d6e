"""A server that echoes, in a thread of its own, and clients for it."""

from __future__ import annotations

import threading
import uuid

from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import ServerEndpoint
from waiting import DEADLINE_S


class EchoServer:
    """Answers ACT with ACTION of the same header and payload; keeps all other requests."""

    def __init__(self, bind="tcp://127.0.0.1:0", **options):
        self.endpoint = ServerEndpoint(bind, **options)
        self.address, self.announce_address = self.endpoint.address, self.endpoint.announce_address
        self.kept = []
        self._stops = threading.Event()
        self._clients = []
        self._thread = threading.Thread(target=self._serve, name="echo server")
        self._thread.start()

    def client(self, keys=None):
        """A client that is closed with the server."""
        client = ClientEndpoint(self.address, client_id=uuid.uuid4(), keys=keys)
        self._clients.append(client)
        return client

    def count(self, name):
        return self.endpoint.metrics[f"transport/{name}"].read()

    def close(self):
        self._stops.set()
        self._thread.join()
        self.endpoint.close(drain_s=0.0)
        for client in self._clients:
            client.close()

    def _serve(self):
        while not self._stops.is_set():
            for request in self.endpoint.poll(0.05):
                if request.message.kind is Kind.ACT:
                    _, header, payload, _ = request.message
                    self.endpoint.reply(request, Message(Kind.ACTION, {**header, "user": request.user}, payload))
                else:
                    self.kept.append(request)


def assert_served(client, num_calls=3, user=""):
    """The client is answered, with what it sent."""
    for i in range(num_calls):
        payload = bytes([i]) * 1000
        reply = client.call(Message(Kind.ACT, {"i": i}, (payload,)), DEADLINE_S)
        assert (reply.kind, reply.header) == (Kind.ACTION, {"i": i, "user": user})
        assert bytes(reply.payload[0]) == payload
