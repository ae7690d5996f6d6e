"""Recorded frames, for other implementations as well: these bytes, for ever."""

import json
from pathlib import Path

import pytest

from relayrl.errors import ProtocolError
from relayrl.transport.messages import Kind, Message, decode, encode

VECTORS = json.loads((Path(__file__).parent / "frame_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda vector: vector["name"])
def test_frames_of_messages(vector):
    payload = tuple(bytes.fromhex(each) for each in vector["payload"])
    message = Message(Kind[vector["kind"]], vector["header"], payload, int(vector["number"]))
    frames = [bytes.fromhex(each) for each in vector["frames"]]
    assert encode(message) == frames
    assert decode(frames) == message


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["name"])
def test_frames_that_are_refused(vector):
    with pytest.raises(ProtocolError) as caught:
        decode([bytes.fromhex(each) for each in vector["frames"]])
    assert caught.value.code == vector["code"]


def test_every_kind_of_the_page_has_its_number():
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    numbers = {
        name.strip(): int(number) for name, number in rows if number.strip().isdigit() and name.strip().isupper()
    }
    assert numbers == {kind.name: kind.value for kind in Kind}


def test_every_metric_of_an_endpoint_is_on_the_page(make_server):
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    for metric in make_server().endpoint.metrics.snapshot():
        name = metric.name
        if name.startswith("transport/refused_") and f"`{name}`" not in page:
            name = "transport/refused_CODE_total"
        assert f"`{name}`" in page, metric.name
