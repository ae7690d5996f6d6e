"""The messages of ML-Agents' communication protocol 1.5.0: names and numbers of the fields that RelayRL reads or writes.

The tables below are the description; protobuf builds the classes from it when the first of them is asked for. Fields that are
not listed are skipped when a message is read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from relayrl.errors import EnvError, MissingExtraError

COMMUNICATION_VERSION = "1.5.0"
PACKAGE = "communicator_objects"
SERVICE, METHOD = f"{PACKAGE}.UnityToExternalProto", "Exchange"
OK_STATUS, QUIT_STATUS = 200, 400
STEP, RESET = 0, 1
"""Values of `UnityRLInputProto.command`."""
NO_COMPRESSION, PNG = 0, 1
"""Values of `ObservationProto.compression_type`."""
GOAL_SIGNAL = 1
"""Value of `ObservationProto.observation_type`: the sensor shows a goal."""
VARIABLE_SIZE = 4
"""Bit of `ObservationProto.dimension_properties`: the axis has up to so many entries, the rest are zeros."""

# name: number and type; `*` marks a repeated field, `name{}` a map from strings. Enumerations travel as int32 does.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "HeaderProto": {"status": (1, "int32"), "message": (2, "string")},
    "UnityRLCapabilitiesProto": {
        "baseRLCapabilities": (1, "bool"),
        "concatenatedPngObservations": (2, "bool"),
        "compressedChannelMapping": (3, "bool"),
        "hybridActions": (4, "bool"),
        "trainingAnalytics": (5, "bool"),
        "variableLengthObservation": (6, "bool"),
        "multiAgentGroups": (7, "bool"),
    },
    "FloatDataProto": {"data": (1, "*float")},
    "ObservationProto": {
        "shape": (1, "*int32"),
        "compression_type": (2, "int32"),
        "compressed_data": (3, "bytes"),
        "float_data": (4, "FloatDataProto"),
        "compressed_channel_mapping": (5, "*int32"),
        "dimension_properties": (6, "*int32"),
        "observation_type": (7, "int32"),
        "name": (8, "string"),
    },
    "AgentInfoProto": {
        "reward": (7, "float"),
        "done": (8, "bool"),
        "max_step_reached": (9, "bool"),
        "id": (10, "int32"),
        "action_mask": (11, "*bool"),
        "observations": (13, "*ObservationProto"),
        "group_id": (14, "int32"),
        "group_reward": (15, "float"),
    },
    "AgentActionProto": {
        "vector_actions_deprecated": (1, "*float"),
        "continuous_actions": (6, "*float"),
        "discrete_actions": (7, "*int32"),
    },
    "ActionSpecProto": {
        "num_continuous_actions": (1, "int32"),
        "num_discrete_actions": (2, "int32"),
        "discrete_branch_sizes": (3, "*int32"),
    },
    "BrainParametersProto": {
        "vector_action_size_deprecated": (3, "*int32"),
        "vector_action_space_type_deprecated": (6, "int32"),
        "brain_name": (7, "string"),
        "is_training": (8, "bool"),
        "action_spec": (9, "ActionSpecProto"),
    },
    "ListAgentInfoProto": {"value": (1, "*AgentInfoProto")},
    "ListAgentActionProto": {"value": (1, "*AgentActionProto")},
    "UnityRLInitializationInputProto": {
        "seed": (1, "int32"),
        "communication_version": (2, "string"),
        "package_version": (3, "string"),
        "capabilities": (4, "UnityRLCapabilitiesProto"),
        "num_areas": (5, "int32"),
    },
    "UnityRLInitializationOutputProto": {
        "name": (1, "string"),
        "communication_version": (2, "string"),
        "log_path": (3, "string"),
        "brain_parameters": (5, "*BrainParametersProto"),
        "package_version": (7, "string"),
        "capabilities": (8, "UnityRLCapabilitiesProto"),
    },
    "UnityRLInputProto": {
        "agent_actions{}": (1, "ListAgentActionProto"),
        "command": (4, "int32"),
        "side_channel": (5, "bytes"),
    },
    "UnityRLOutputProto": {"agentInfos{}": (2, "ListAgentInfoProto"), "side_channel": (3, "bytes")},
    "UnityInputProto": {
        "rl_input": (1, "UnityRLInputProto"),
        "rl_initialization_input": (2, "UnityRLInitializationInputProto"),
    },
    "UnityOutputProto": {
        "rl_output": (1, "UnityRLOutputProto"),
        "rl_initialization_output": (2, "UnityRLInitializationOutputProto"),
    },
    "UnityMessageProto": {
        "header": (1, "HeaderProto"),
        "unity_output": (2, "UnityOutputProto"),
        "unity_input": (3, "UnityInputProto"),
    },
}
_ONE_OF = {"compressed_data": "observation_data", "float_data": "observation_data"}


def message(name: str, **fields: Any) -> Any:
    """A new message `name` of the protocol."""
    return _classes()[name](**fields)


def read_message(data: bytes) -> Any:
    """A `UnityMessageProto` as a simulator sends it; `EnvError` where the bytes are none."""
    parsed = message("UnityMessageProto")
    from google.protobuf.message import DecodeError  # there, where `message` found it

    try:
        parsed.ParseFromString(data)
    except DecodeError as error:
        raise EnvError(f"the simulator sent {len(data)} bytes that are no message of ML-Agents: {error}") from error
    return parsed


@cache
def _classes() -> dict[str, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtraError("a Unity simulator", "unity") from error
    file = descriptor_pb2.FileDescriptorProto(name="relayrl_unity.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()  # of its own: mlagents_envs registers the same names in the default one
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


def _describe(descriptor: Any, fields: dict[str, tuple[int, str]]) -> None:
    for name in dict.fromkeys(_ONE_OF[field] for field in fields if field in _ONE_OF):
        descriptor.oneof_decl.add(name=name)
    for name, (number, kind) in fields.items():
        if name.endswith("{}"):
            name, entry = name[:-2], f"{_camel(name[:-2])}Entry"
            pair = descriptor.nested_type.add(name=entry)
            pair.options.map_entry = True
            _add_field(pair, "key", 1, "string")
            _add_field(pair, "value", 2, kind)
            kind = f"*{descriptor.name}.{entry}"
        field = _add_field(descriptor, name, number, kind)
        if name in _ONE_OF:
            field.oneof_index = 0


def _add_field(descriptor: Any, name: str, number: int, kind: str) -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    label = FieldDescriptorProto.LABEL_REPEATED if kind.startswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    field = descriptor.field.add(name=name, number=number, label=label)
    if kind[0].isupper():
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    return field


def _camel(name: str) -> str:
    """The name that protobuf wants a map's entries to have."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
