"""Flame graphs from counted stacks: a self-contained SVG, and speedscope's JSON. Pure functions of text."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from html import escape
from typing import Any

Stack = tuple[str, ...]
WIDTH, ROW_HEIGHT, CHAR_WIDTH, MIN_WIDTH = 1200.0, 17, 6.6, 0.5


def flame_graph_svg(stacks: Mapping[Stack, int], interval_s: float) -> str:
    """Boxes as wide as their share of samples, callers below what they call; hovering shows the share."""
    total = sum(stacks.values())
    root = _tree(stacks)
    boxes: list[str] = []
    depth = _draw(boxes, root, "all threads", total, 0.0, 0, max(total, 1), interval_s)
    height = (depth + 1) * ROW_HEIGHT + 30
    body = "\n".join(boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" width="{WIDTH:.0f}" '
        f'font-family="monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="4" y="16">{total} samples, {interval_s * 1000:.0f} ms apart</text>\n'
        f'<g transform="translate(0 {height - ROW_HEIGHT})">\n{body}\n</g>\n</svg>\n'
    )


def speedscope_json(stacks: Mapping[Stack, int], interval_s: float) -> str:
    """The same for https://speedscope.app."""
    names = sorted({name for stack in stacks for name in stack})
    number = {name: i for i, name in enumerate(names)}
    ordered = sorted(stacks.items())
    weights = [count * interval_s for _, count in ordered]
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": name} for name in names]},
            "profiles": [
                {
                    "type": "sampled",
                    "name": "relayrl",
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": sum(weights),
                    "samples": [[number[name] for name in stack] for stack, _ in ordered],
                    "weights": weights,
                }
            ],
        }
    )


def _tree(stacks: Mapping[Stack, int]) -> dict[str, Any]:
    """Nested `{name: [count, children]}`."""
    root: dict[str, Any] = {}
    for stack, count in sorted(stacks.items()):
        children = root
        for name in stack:
            node = children.setdefault(name, [0, {}])
            node[0] += count
            children = node[1]
    return root


def _draw(
    boxes: list[str],
    children: dict[str, Any],
    name: str,
    count: int,
    x: float,
    depth: int,
    total: int,
    interval_s: float,
) -> int:
    """Append the box of a node and those above it; gives how deep they go."""
    width = WIDTH * count / total
    if width < MIN_WIDTH:
        return depth
    y = -depth * ROW_HEIGHT
    title = f"{name}: {count} samples, {100 * count / total:.1f} %, {count * interval_s:.2f} s"
    label = name if len(name) * CHAR_WIDTH < width - 6 else name[: max(0, int((width - 12) / CHAR_WIDTH))]
    red, green = 205 + zlib.crc32(name.encode()) % 50, 90 + zlib.crc32(name[::-1].encode()) % 130
    boxes.append(
        f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW_HEIGHT - 1}" '
        f'fill="rgb({red},{green},60)" rx="2"/><text x="{x + 3:.1f}" y="{y + 12}">{escape(label)}</text></g>'
    )
    deepest, left = depth, x
    for child, (child_count, grandchildren) in children.items():
        deepest = max(deepest, _draw(boxes, grandchildren, child, child_count, left, depth + 1, total, interval_s))
        left += WIDTH * child_count / total
    return deepest
