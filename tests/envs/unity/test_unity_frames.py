"""Messages are those of the published protocol, byte by byte; what is damaged is refused."""

from __future__ import annotations

import struct
import zlib
from uuid import UUID

import numpy as np
import pytest
from fake_simulator import png, png_of
from recorded_frames import (
    ACTIONS,
    ANSWER_TO_GREETING,
    ENGINE,
    GREETING,
    OBSERVATIONS,
    PARAMETERS,
    QUIT,
    RESET,
    STATISTIC,
)

from relayrl.data.mlagents.png_images import decode_images
from relayrl.data.trees import space_leaves
from relayrl.envs.environment_contract import Combination
from relayrl.envs.unity.behaviors import Behavior, Sensor, SensorKind, form_groups, read_behavior
from relayrl.envs.unity.side_channels import EngineSettings, SceneStatistics, parameter_messages, read_block
from relayrl.envs.unity.unity_messages import message, read_message
from relayrl.errors import ConfigError, DecodeError, EnvError
from relayrl.models.networks.observation_encoder import ObservationEncoder

STRIKER = "Striker?team=1"


def written(**fields: object) -> bytes:
    header = message("HeaderProto", status=200)
    return message("UnityMessageProto", header=header, **fields).SerializeToString(deterministic=True)


def test_the_greeting_is_read() -> None:
    them = read_message(GREETING).unity_output.rl_initialization_output
    assert (them.name, them.communication_version, them.package_version) == ("Soccer", "1.5.0", "3.0.0")
    assert all(getattr(them.capabilities, field.name) for field in them.capabilities.DESCRIPTOR.fields)


def test_our_greeting_is_the_published_one() -> None:
    names = ("baseRLCapabilities", "hybridActions", "variableLengthObservation", "multiAgentGroups")
    more = ("concatenatedPngObservations", "compressedChannelMapping")
    greeting = message(
        "UnityRLInitializationInputProto",
        seed=7,
        communication_version="1.5.0",
        package_version="relayrl",
        num_areas=3,
        capabilities=message("UnityRLCapabilitiesProto", **dict.fromkeys((*names, *more), True)),
    )
    assert written(unity_input=message("UnityInputProto", rl_initialization_input=greeting)) == ANSWER_TO_GREETING


def test_observations_are_read_field_by_field() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    going, ended = output.rl_output.agentInfos[STRIKER].value
    assert (brain.brain_name, list(brain.action_spec.discrete_branch_sizes)) == (STRIKER, [3, 2])
    assert (going.id, going.reward, going.group_id, going.group_reward, going.done) == (41, 0.5, 6, -1.25, False)
    assert (ended.id, ended.reward, ended.done, ended.max_step_reached) == (40, 1.0, True, True)
    assert list(going.action_mask) == [True, False, False, False, True]
    vector, buffer, camera = going.observations
    assert (list(vector.float_data.data), vector.name) == ([1.0, -2.5, 0.25], "VectorSensor_size3")
    assert (list(buffer.shape), list(buffer.dimension_properties)) == ([2, 2], [4, 1])
    assert (camera.compression_type, camera.compressed_data, list(camera.compressed_channel_mapping)) == (
        1,
        b"\x89PNG...",
        [0, 0, 0],
    )
    assert output.rl_output.side_channel == b"\x07\x08"


def test_a_behaviour_has_the_spaces_of_its_announcement() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    info = output.rl_output.agentInfos[STRIKER].value[0]
    behavior = read_behavior(brain, info)
    space = behavior.observation_space
    assert {key: (part.shape, str(part.dtype)) for key, part in space.items()} == {  # type: ignore[attr-defined]
        "Buffer": ((2, 2), "float32"),
        "Buffer_present": ((2,), "int8"),
        "goal_signal_Camera": ((1, 84, 84), "uint8"),  # a goal sensor
        "VectorSensor_size3": ((3,), "float32"),
    }
    assert behavior.action_mask(info).tolist() == [False, True, True, True, False]  # type: ignore[union-attr]
    assert behavior.action_space["continuous"].shape == (2,)  # type: ignore[index]


def test_a_goal_sensor_is_known_by_its_name() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    info = output.rl_output.agentInfos[STRIKER].value[0]
    info.observations[0].observation_type, info.observations[2].observation_type = 1, 0  # goal signal, default
    space = read_behavior(brain, info).observation_space
    encodings = dict(zip([path for path, _ in space_leaves(space)], ObservationEncoder(space).encodings, strict=True))
    assert [path for path, encoding in encodings.items() if encoding.is_goal] == ["goal_signal_VectorSensor_size3"]


def test_actions_and_commands_are_the_published_ones() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    behavior = read_behavior(brain, output.rl_output.agentInfos[STRIKER].value[0])
    taken = behavior.action({"continuous": np.array([0.5, -3.0]), "discrete": np.array([2, 1])})
    rl_input = message("UnityRLInputProto")
    rl_input.agent_actions[STRIKER].value.append(taken)
    assert written(unity_input=message("UnityInputProto", rl_input=rl_input)) == ACTIONS
    reset = message("UnityRLInputProto", command=1, side_channel=b"\x01\x02")
    assert written(unity_input=message("UnityInputProto", rl_input=reset)) == RESET
    header = message("HeaderProto", status=400)
    assert message("UnityMessageProto", header=header).SerializeToString() == QUIT


def test_actions_outside_the_space_are_refused() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    behavior = read_behavior(brain, output.rl_output.agentInfos[STRIKER].value[0])
    with pytest.raises(EnvError, match="cannot do 3; the branch has the actions 0 to 2"):
        behavior.action({"continuous": np.zeros(2), "discrete": np.array([3, 0])})
    with pytest.raises(EnvError, match="not finite"):
        behavior.action({"continuous": np.array([0.0, np.nan]), "discrete": np.array([0, 0])})


def test_agents_that_do_not_fit_their_announcement_are_refused() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    first, ended = output.rl_output.agentInfos[STRIKER].value
    behavior = read_behavior(brain, first)
    with pytest.raises(EnvError, match="has 0 sensors, the first had 3"):
        behavior.observation(ended)
    vector, buffer, camera = first.observations
    sensors = behavior.sensors
    with pytest.raises(EnvError, match=r"has the shape \[2, 2\], at first it was \[3\]"):
        sensors[0].read(buffer)
    with pytest.raises(EnvError, match="no PNG"):
        sensors[2].read(camera)
    vector.float_data.data.append(1.0)
    with pytest.raises(EnvError, match=r"sent 4 numbers for the shape \[3\]"):
        sensors[0].read(vector)
    buffer.float_data.data.append(1.0)
    with pytest.raises(EnvError, match="sent 5 numbers for at most 2 rows of 2"):
        sensors[1].read(buffer)
    camera.compression_type = 0
    with pytest.raises(EnvError, match="has changed its compression"):
        sensors[2].read(camera)
    first.action_mask.append(True)
    with pytest.raises(EnvError, match="masks 6 actions, there are 5"):
        behavior.action_mask(first)


def test_a_buffer_may_be_shorter_than_its_most() -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    first = output.rl_output.agentInfos[STRIKER].value[0]
    sensor = read_behavior(brain, first).sensors[1]
    del first.observations[1].float_data.data[2:]
    read = sensor.read(first.observations[1])
    assert (read["Buffer"].tolist(), read["Buffer_present"].tolist()) == ([[1.0, 2.0], [0.0, 0.0]], [1, 0])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda brain, info: brain.action_spec.discrete_branch_sizes.append(0), "branches"),
        (lambda brain, info: brain.action_spec.discrete_branch_sizes.append(1 << 20), "65536 are the limit"),
        (lambda brain, info: info.observations[0].shape.extend([1 << 14, 1 << 14]), "16,777,216 numbers"),
        (lambda brain, info: info.observations[0].shape.extend([1, 1, 1]), "1 to 3 axes"),
        (lambda brain, info: info.observations[0].shape.append(-1), "1 to 3 axes"),
        (lambda brain, info: setattr(info.observations[0], "compression_type", 5), "RelayRL reads PNG images"),
        (lambda brain, info: info.observations.__delitem__(slice(None)), "see nothing"),
    ],
)
def test_announcements_without_sense_are_refused(change: object, what: str) -> None:
    output = read_message(OBSERVATIONS).unity_output
    (brain,) = output.rl_initialization_output.brain_parameters
    info = output.rl_output.agentInfos[STRIKER].value[0]
    change(brain, info)  # type: ignore[operator]
    with pytest.raises(EnvError, match=what):
        read_behavior(brain, info)


def test_side_channels_are_the_published_ones() -> None:
    assert b"".join(parameter_messages({"goal_size": 2.5, "wind": -1})) == PARAMETERS
    assert b"".join(EngineSettings().messages()) == ENGINE
    assert [channel for channel, _ in read_block(PARAMETERS)] == [UUID("534c891e-810f-11ea-a9d0-822485860400")] * 2


def test_statistics_are_those_of_the_scene() -> None:
    statistics = SceneStatistics()
    statistics.add(STATISTIC)  # Walk/Arrived 0.75, summed
    statistics.add(struct.pack("<i", 4) + b"a\n,b" + struct.pack("<fi", 4.0, 1))
    statistics.add(struct.pack("<i", 1) + b"c" + struct.pack("<fi", float("nan"), 0))
    assert statistics.take() == [("Walk/Arrived", 0.75, Combination.SUM), ("a__b", 4.0, Combination.MOST_RECENT)]
    assert statistics.take() == []


@pytest.mark.parametrize("cut", [1, 3, 8, 19, 20, 25])
def test_damaged_side_channels_are_refused(cut: int) -> None:
    with pytest.raises(EnvError, match="damaged side channel"):
        list(read_block(PARAMETERS[:-cut]))
    with pytest.raises(EnvError, match="damaged statistic"):
        SceneStatistics().add(STATISTIC[: -min(cut, 12)])


@pytest.mark.parametrize(("name", "value"), [("wind", float("nan")), ("wind", 1e39), ("wind", "much"), ("vent_é", 1.0)])
def test_parameters_that_unity_cannot_take_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match="environment parameter"):
        list(parameter_messages({name: value}))  # type: ignore[dict-item]


def test_frames_that_are_cut_off_are_refused() -> None:
    refused = 0
    for size in range(1, len(OBSERVATIONS)):
        try:
            read_message(OBSERVATIONS[:size])
        except EnvError:
            refused += 1
    assert refused > len(OBSERVATIONS) // 2


# --- images -------------------------------------------------------------------------------------------------------------------


def test_an_image_has_the_axes_of_its_observation() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert (decode_images(png(pixels), (3, 5, 7), []) == np.moveaxis(pixels, -1, 0)).all()
    assert (decode_images(png(pixels), (5, 7, 3), []) == pixels).all()


def test_stacked_images_follow_their_mapping() -> None:
    first, second = (np.full((4, 6, 3), value, np.uint8) for value in (40, 90))
    second[..., 0] = 91
    both = decode_images(png(first) + png(second), (2, 4, 6), [0, 0, 0, 1, 1, 1])
    assert both[0].tolist() == np.full((4, 6), 40).tolist()
    assert both[1].tolist() == np.full((4, 6), 90).tolist()  # 271 / 3, rounded
    swapped = decode_images(png(first) + png(second), (2, 4, 6), [1, -1, -1, -1, 0, -1])
    assert (swapped[0, 0, 0], swapped[1, 0, 0]) == (90, 40)
    assert decode_images(png(first) + png(second), (5, 4, 6), []).shape == (5, 4, 6)  # the sixth channel is padding


BOMB = png_of(30_000, 30_000, zlib.compress(bytes(10_000)))


@pytest.mark.parametrize(
    ("data", "shape", "mapping", "what"),
    [
        (BOMB, (3, 16, 16), [], "is 30000x30000"),
        (png_of(16, 16, zlib.compress(bytes(10))), (3, 16, 16), [], "no PNG that can be read"),
        (png_of(16, 16, b"no zlib"), (3, 16, 16), [], "no PNG that can be read"),
        (b"GIF89a", (3, 16, 16), [], "no PNG at byte 0"),
        (b"", (3, 16, 16), [], "is empty"),
        (png(np.zeros((4, 4, 3)))[:-6], (3, 4, 4), [], "cut off"),
        (png(np.zeros((4, 4, 3))) * 9, (3, 4, 4), [], "channels or more"),
        (png(np.zeros((4, 4, 3))), (2, 4, 4), [0, 0, 5], "channel mapping"),
        (png(np.zeros((4, 4, 3))), (3, 4, 4), [0, 1], "channel mapping"),
        (png(np.zeros((4, 4, 3))), (6, 4, 4), [], "has 3 channels, its observation 6"),
    ],
)
def test_images_that_do_not_fit_are_refused(data: bytes, shape: tuple[int, ...], mapping: list[int], what: str) -> None:
    with pytest.raises(DecodeError, match=what):
        decode_images(data, shape, mapping)


def test_an_image_that_is_longer_than_its_header_says_stays_as_large_as_it() -> None:
    rows = zlib.compress(bytes(1 << 24))
    assert decode_images(png_of(16, 16, rows), (3, 16, 16), []).shape == (3, 16, 16)


def test_teams_of_a_behaviour_share_a_group_where_they_are_alike() -> None:
    def behavior(name: str, width: int) -> Behavior:
        return Behavior(name, (Sensor("vector", SensorKind.NUMBERS, (width,)),), 2, ())

    widths = {
        "Soccer?team=0": 3,
        "Soccer?team=1": 3,
        "Chase?team=0": 3,
        "Chase?team=1": 4,
        "My Ball!?team=0": 3,
        "Plain": 3,
    }
    members = form_groups({name: behavior(name, width) for name, width in widths.items()})
    assert [(member.group, member.prefix) for member in members.values()] == [
        ("Soccer", "Soccer?team=0"),
        ("Soccer", "Soccer?team=1"),
        ("Chase_team0", "Chase_team0"),
        ("Chase_team1", "Chase_team1"),
        ("My_Ball", "My_Ball"),
        ("Plain", "Plain"),
    ]
