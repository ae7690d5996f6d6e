"""What pages and programs use of RelayRL that is not public; names of `relayrl`, `.extend`, `.errors` and `.testing` are."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = ("relayrl", "relayrl.extend", "relayrl.testing", "relayrl.errors")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = [*sorted((ROOT / "examples").glob("*.py")), *sorted((ROOT / "docs").rglob("*.py"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def public_names(module: str) -> list[str]:
    """In the order of the module's table."""
    found = importlib.import_module(module)
    if module == "relayrl.errors":
        return [name for name, value in vars(found).items() if inspect.isclass(value) and value.__module__ == module]
    return [name for name in found.__all__ if name != "__version__"]


def deep_imports(path: Path) -> list[str]:
    """Of a program, or of the code on a page: imports, commands, and environments by `module:name`."""
    text = path.read_text()
    codes = _BLOCK.findall(text) if path.suffix == ".md" else [text]
    found = [use for code in codes for use in private_uses(ast.parse(code))]
    found += re.findall(r"-m\W+relayrl\.", text)  # the command is `relayrl` or `python -m relayrl`
    environments = re.findall(r"\b(relayrl\.[\w.]+):(\w+)", text)
    public = public_names("relayrl.testing")
    return found + [":".join(name) for name in environments if name[0] != "relayrl.testing" or name[1] not in public]


def private_uses(tree: ast.AST) -> list[str]:
    """What a program imports or reads of RelayRL that is not public, also inside of programs that it holds as text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.startswith("relayrl") and each.name not in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "relayrl":
            found += [f"{node.module}.{each.name}" for each in node.names if not _is_public(node.module, each.name)]
        elif isinstance(node, ast.Attribute) and (owner := ast.unparse(node.value)) in MODULES:
            found += [] if _is_public(owner, node.attr) else [f"{owner}.{node.attr}"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            found += _private_uses_of_text(node.value)
    return found


def _private_uses_of_text(text: str) -> list[str]:
    try:
        return private_uses(ast.parse(text))
    except SyntaxError:
        return []  # prose


def _is_public(module: str | None, name: str) -> bool:
    return module in MODULES and (name == "__version__" or name in public_names(module))
