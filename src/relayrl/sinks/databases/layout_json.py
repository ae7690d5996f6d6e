"""A layout as JSON text, for storage that has no Arrow schema of its own: CSV, Parquet's degenerate columns, databases.

    {"schema_version": 2, "kind": "trajectory", "group": "agent", "observation_space": {…}, "action_space": {…},
     "mask_width": null, "has_logp": true, "has_value": true, "memory_space": null}

Where states are recorded, `"state_space": {…}` as well; with the action mask after the last step, `"masks_successor": true`;
where rows are numbered by the environment, `"knows_steps": true`.

Equal layouts give equal texts.
"""

from __future__ import annotations

import json
from typing import Any

from relayrl.data.arrow.schema import READABLE_VERSIONS, SCHEMA_VERSION, Kind, Layout
from relayrl.data.arrow.space_json import space_from_json, space_to_json
from relayrl.data.trees import Space
from relayrl.errors import DecodeError

_MAX_ELEMENTS = 1 << 27
"""Most elements of a row that are believed; spaces with a bound for each element allocate as much."""
_KEYS = ("observation_space", "action_space", "mask_width", "has_logp", "has_value", "memory_space")


def layout_to_json(layout: Layout) -> str:
    """The text of a layout."""

    def document(space: Space) -> Any:
        return json.loads(space_to_json(space))

    text = {
        "schema_version": SCHEMA_VERSION,
        "kind": layout.kind.value,
        "group": layout.group,
        "observation_space": document(layout.observation_space),
        "action_space": document(layout.action_space),
        "mask_width": layout.mask_width,
        "has_logp": layout.has_logp,
        "has_value": layout.has_value,
        "memory_space": None if layout.memory_space is None else document(layout.memory_space),
    }
    if layout.state_space is not None:
        text["state_space"] = document(layout.state_space)
    if layout.masks_successor:
        text["masks_successor"] = True
    if layout.knows_steps:
        text["knows_steps"] = True
    return json.dumps(text)


def layout_from_json(text: str) -> Layout:
    """The layout that `layout_to_json` wrote; `DecodeError` for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a layout is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != Kind.TRAJECTORY.value:
        raise DecodeError("a layout is no JSON object of kind 'trajectory'")
    version = document.get("schema_version")
    if version not in READABLE_VERSIONS:
        raise DecodeError(f"data of schema version {version!r:.20}; this program reads versions 1 to {SCHEMA_VERSION}")
    missing = [key for key in ("group", *_KEYS) if key not in document]
    if missing or not isinstance(document["group"], str):
        raise DecodeError(f"a layout lacks {missing or ['group']}")
    mask_width = document["mask_width"]
    if mask_width is not None and not (type(mask_width) is int and 0 <= mask_width <= _MAX_ELEMENTS):
        raise DecodeError(f"a layout has the mask width {mask_width!r:.20}")
    memory, state = document["memory_space"], document.get("state_space")
    return Layout(
        Kind.TRAJECTORY,
        document["group"],
        _space(document["observation_space"]),
        _space(document["action_space"]),
        mask_width,
        bool(document["has_logp"]),
        bool(document["has_value"]),
        None if memory is None else _space(memory),
        None if state is None else _space(state),
        mask_width is not None and bool(document.get("masks_successor")),
        bool(document.get("knows_steps")),
    )


def _space(document: Any) -> Space:
    return space_from_json(json.dumps(document), max_elements=_MAX_ELEMENTS)
