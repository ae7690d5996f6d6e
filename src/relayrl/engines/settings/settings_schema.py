"""A JSON Schema of run settings files, for editors: completion, help texts and errors while one types.

Begin a YAML file with `# yaml-language-server: $schema=relayrl.schema.json` after `relayrl list schema > relayrl.schema.json`.
The settings classes are the only source; this file only says which `params` belong to which `algo`.
"""

from __future__ import annotations

from typing import Any

from relayrl.algorithms.registry import algorithms
from relayrl.engines.settings.run_settings import RunSettings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The schema; `env` may come from the command line, so nothing is required."""
    schema = RunSettings.model_json_schema(mode="validation")
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    rules = []
    for name, entry in algorithms().items():
        params = entry.params.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= params.pop("$defs", {})
        definitions[entry.params.__name__] = params
        reference = {"properties": {"params": {"$ref": f"#/$defs/{entry.params.__name__}"}}}
        is_named = {"properties": {"algo": {"const": name}}, **({} if name == "ppo" else {"required": ["algo"]})}
        rules.append({"if": is_named, "then": reference})
    properties = schema["properties"]
    properties["params"] = {"type": "object", "description": properties["params"].get("description", "")}
    properties["algo"] = {**properties["algo"], "examples": list(algorithms())}
    definitions.pop("Settings", None)
    schema.pop("required", None)
    return {**schema, "$schema": DIALECT, "title": "RelayRL run", "allOf": rules}
