"""What the documentation site has beside the files in docs/: pages made from the code, and links that leave docs/.

A hook of MkDocs (`hooks` in mkdocs.yml). Generated are the reference of commands from the parser, of settings from their JSON
schema, of Python names from the public tables, the results, and the decisions' part of the navigation. Links from a page to a
file outside of docs/ lead to the repository.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path, PurePosixPath
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/relayrl/relayrl/blob/main"
RESULTS = {"benchmarks/RESULTS.md": "reference/results.md", "benchmarks/history.md": "reference/history.md"}
_LINK = re.compile(r"(\]\()((?!https?://|mailto:|#)[^)\s#]+)(#[^)\s]*)?(\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the decisions in the navigation, in their order."""
    assert config.nav is not None
    decisions = [f"adr/{path.name}" for path in sorted((DOCS / "adr").glob("*.md"))]
    config.nav.append({"Decisions": decisions})
    config.nav.append({"History of measurements": "reference/history.md"})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    generated = {
        "reference/commands.md": commands_page(),
        "reference/all-settings.md": settings_page(),
        "reference/python.md": python_page(),
        **{page: (ROOT / source).read_text() for source, page in RESULTS.items()},
    }
    for name, text in generated.items():
        files.append(File.generated(config, name, content=text))
    for picture in sorted((ROOT / "benchmarks").rglob("*.png")):
        relative = picture.relative_to(ROOT / "benchmarks")
        files.append(File.generated(config, f"reference/{relative.as_posix()}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ lead to a generated page, or to the repository."""
    source = page.file.src_uri
    at = next((key for key, value in RESULTS.items() if value == source), f"docs/{source}")
    return _LINK.sub(lambda link: _followed(link, PurePosixPath(at).parent, source), markdown)


def _followed(link: re.Match[str], folder: PurePosixPath, source: str) -> str:
    before, target, anchor, after = link.groups()
    path = _normal(folder / target)
    if path in RESULTS:
        target = _relative(RESULTS[path], source)
    elif path.startswith("docs/") and not (ROOT / path).is_dir():
        target = _relative(path.removeprefix("docs/"), source)
    elif not (path.startswith("benchmarks/") and path.endswith(".png")):
        target = f"{REPOSITORY}/{path}"
    return f"{before}{target}{anchor or ''}{after}"


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _relative(target: str, source: str) -> str:
    return "../" * source.count("/") + target


# ---- commands, from the parser


def commands_page() -> str:
    """Every command with its arguments, options and defaults."""
    import typer

    from relayrl.cli.main import app

    lines = ["# Commands", "", "Made from the parser: what `--help` prints.", ""]
    root = typer.main.get_command(app)
    for path, command in _commands(root, ["relayrl"]):
        context = click.Context(command, info_name=" ".join(path))
        lines += [f"## {' '.join(path)}", "", _plain(command.help or ""), "", "```"]
        lines += [f"{' '.join(path)} {' '.join(command.collect_usage_pieces(context))}", "```", ""]
        rows = [row for row in map(_parameter_row, command.params) if row]
        if rows:
            lines += ["| | | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _commands(command: Any, path: list[str]) -> list[tuple[list[str], Any]]:
    children = getattr(command, "commands", {})
    if not children:
        return [(path, command)]
    return [found for name, child in children.items() if not child.hidden for found in _commands(child, [*path, name])]


def _parameter_row(parameter: Any) -> str:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    is_option = isinstance(parameter, click.Option) or parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    default = parameter.default
    shown = (
        "" if default in (None, (), [], "", False) or callable(default) else f"`{getattr(default, 'value', default)}`"
    )
    return f"| {names} | {_cell(getattr(parameter, 'help', '') or '')} | {shown} |"


# ---- settings, from their schema


def settings_page() -> str:
    """Every key of a run's settings, its type, default and meaning."""
    from relayrl.engines.settings.settings_schema import settings_schema
    from relayrl.sweeps.sweep_settings import SweepSettings

    lines = [
        "# All settings",
        "",
        "Made from the JSON schema that `relayrl list schema` prints, and that of sweeps.",
        "",
    ]
    for title, schema in {"run": settings_schema(), "sweep": SweepSettings.model_json_schema()}.items():
        definitions = schema.get("$defs", {})
        lines += _settings_table(title, schema, definitions)
        named = {name: each for name, each in definitions.items() if each.get("type") == "object"}
        for name, definition in sorted(named.items()):
            lines += _settings_table(name, definition, definitions)
    return "\n".join(lines)


def _settings_table(name: str, schema: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    lines = [
        f"## {name}",
        "",
        _plain(schema.get("description", "")),
        "",
        "| key | type | default | |",
        "|---|---|---|---|",
    ]
    for key, each in schema.get("properties", {}).items():
        default = each.get("default")
        shown = "" if isinstance(default, dict) or "default" not in each else f"`{default}`"
        lines.append(
            f"| `{key}` | {_cell(_type_of(each, definitions))} | {_cell(shown)} | {_cell(each.get('description', ''))} |"
        )
    return [*lines, ""]


def _type_of(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        choices = definitions.get(name, {}).get("enum")
        return " or ".join(f"`{choice}`" for choice in choices) if choices else f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type_of(each, definitions) for each in schema[key]))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{choice}`" for choice in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type_of(schema.get('items', {}), definitions)}"
    return str(schema.get("type", "any"))


# ---- Python names, from the public tables


def python_page() -> str:
    """The signatures and docstrings of all public names."""
    lines = ["# Python API", "", "Signatures and docstrings of the [public names](../api.md).", ""]
    for module_name in ("relayrl", "relayrl.extend", "relayrl.testing"):
        lines += [f"## {module_name}", ""]
        module = importlib.import_module(module_name)
        for name, home in module._HOMES.items():
            lines += [f"::: {home}.{name}", "    options:", f"      heading: {name}", ""]
    lines += ["## relayrl.errors", "", "::: relayrl.errors", "    options:", "      show_root_heading: false", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _plain(text: str) -> str:
    return text.replace("\b\n", "").strip()
