"""An actor without RelayRL: the standard library and pyzmq, and docs/protocol.md.

    relayrl serve training CartPole-v1 --bind tcp://127.0.0.1:7776 --run-dir runs/served
    python examples/standalone_client.py tcp://127.0.0.1:7776 --episodes 20

It plays CartPole with random actions, sends every episode until the server says that it is durable, and fetches the newest
policy. A client in another language does the same: frames, JSON, and arrays of little-endian numbers.
"""

import argparse
import array
import hashlib
import json
import math
import random
import struct
import sys
import time
import uuid

import zmq

FIXED = struct.Struct(">3sBBBHQ")  # magic, version, kind, flags, reserved, request number
HELLO, WELCOME, MODEL_GET, MODEL, TRAJECTORY, ACK, BYE, ERROR = 1, 2, 4, 5, 6, 7, 13, 14
TIMEOUT_S = 10.0


class Client:
    """One connection; `call` sends a request and waits for its reply."""

    def __init__(self, address):
        self.address, self.number = address, 0
        self.context = zmq.Context()
        self.connect()

    def connect(self):
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.heartbeat_ivl, self.socket.heartbeat_timeout = 2_000, 10_000
        self.socket.connect(self.address)

    def send(self, kind, header, payload=()):
        self.number += 1
        fixed = FIXED.pack(b"RLY", 1, kind, 0, 0, self.number)
        self.socket.send_multipart([fixed, json.dumps(header).encode(), *payload])

    def call(self, kind, header, payload=()):
        """Kind, header and payload of the reply; None without one in time, and then the connection is a new one."""
        self.send(kind, header, payload)
        end = time.monotonic() + TIMEOUT_S
        while (left := end - time.monotonic()) > 0 and self.socket.poll(int(left * 1000) + 1):
            fixed, text, *payload = self.socket.recv_multipart()
            magic, version, kind, _, _, number = FIXED.unpack(fixed)
            if (magic, version, number) == (b"RLY", 1, self.number):  # others are late replies to earlier requests
                return kind, json.loads(text), payload
        self.socket.close()
        self.connect()
        return None

    def hello(self, client_id):
        """The server's WELCOME, however long it takes until there is a server."""
        while True:
            about = {"protocol": 1, "role": "actor", "schema_version": 2, "behaviors": None}
            reply = self.call(HELLO, {**about, "client_id": client_id})
            if reply is not None:
                kind, header, _ = reply
                if kind != WELCOME:
                    sys.exit(f"refused: {header['message']}")
                return header


def play(rng):
    """One episode of CartPole-v1 with random actions: observations, actions, rewards, last observation, how it ended."""
    state = [rng.uniform(-0.05, 0.05) for _ in range(4)]
    seen, done = [], []
    while True:
        action = rng.randrange(2)
        seen.append(state)
        done.append(action)
        x, speed, angle, turning = state
        force = 10.0 if action else -10.0
        part = (force + 0.05 * turning**2 * math.sin(angle)) / 1.1
        bend = (9.8 * math.sin(angle) - math.cos(angle) * part) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        push = part - 0.05 * bend * math.cos(angle) / 1.1
        state = [x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turning, turning + 0.02 * bend]
        terminated = abs(state[0]) > 2.4 or abs(state[2]) > 12 * math.pi / 180
        if terminated or len(done) == 500:
            return seen, done, [1.0] * len(done), state, terminated


def column(code, values):
    """Little-endian bytes of numbers: 'f' float32, 'q' int64."""
    numbers = array.array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def message_of(group, agent_id, env_id, episode, version, rng):
    """Header and payload of one episode."""
    seen, done, rewards, last, terminated = play(rng)
    trajectory = {"env_id": env_id, "agent_id": agent_id, "episode": episode, "first_step": 0, "num_steps": len(done)}
    trajectory |= {"policy_version": version, "terminated": terminated, "truncated": not terminated}
    names = ["obs", "action", "reward", "final_obs", "logp"]
    flat = [number for state in seen for number in state]
    numbers = ("f", flat), ("q", done), ("f", rewards), ("f", last), ("f", [math.log(0.5)] * len(done))
    header = {"encoding": "columns", "behavior": group, "columns": names, "trajectory": trajectory}
    return header, [column(code, values) for code, values in numbers]


def main():
    parser = argparse.ArgumentParser(description="Play CartPole for a training server.")
    parser.add_argument("address", help="tcp://HOST:PORT of the server")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, client_id, env_id = random.Random(options.seed), str(uuid.uuid4()), str(uuid.uuid4())
    client = Client(options.address)
    welcome = client.hello(client_id)
    ((group, behavior),) = welcome["behaviors"].items()
    version, sequence = welcome["model_versions"][group], welcome["next_sequence"]
    for episode in range(options.episodes):
        header, payload = message_of(group, behavior["agent_ids"][0], env_id, episode, version, rng)
        durable = False
        while not durable:  # until the server holds it durably; what it has already, it takes no second time
            reply = client.call(TRAJECTORY, {**header, "client_id": client_id, "sequence": sequence}, payload)
            if reply is None or reply[0] == ERROR:
                client.hello(client_id)
                continue
            for number, reason in reply[1].get("rejected", []):
                sys.exit(f"message {number} was refused: {reason}")
            durable = reply[1]["durable_through"] >= sequence
            version = reply[1]["model_versions"][group]
            if not durable:
                time.sleep(0.05)  # the server has enough for now
        sequence += 1
    while (reply := client.call(MODEL_GET, {"group": group, "have": -1})) is None or reply[0] != MODEL:
        client.hello(client_id)
    _, header, (model,) = reply
    if hashlib.sha256(model).hexdigest() != header["sha256"]:
        sys.exit("the policy came damaged")
    client.send(BYE, {"client_id": client_id})
    print(f"{sequence} episodes are durable; policy {header['version']} of {group!r} has {len(model)} bytes")
    client.context.destroy(linger=1_000)


if __name__ == "__main__":
    main()
