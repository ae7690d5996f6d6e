"""The picture of a particle world: landmarks, agents, and underneath what is being said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.native.particles.layout import Layout
from relayrl.envs.native.rasteriser import INK, PALE, Canvas, Colour

_SIDE_PIXELS = 300
_SPEECH_PIXELS = 30
_MARGIN = 0.08


def draw_particles(
    layout: Layout, state: Mapping[str, Array], colours: Sequence[Colour], *, zoom_bodies: bool
) -> Array:
    """`[H, W, 3]` picture of one world; `state` holds `position` `[2, E]` and, where anybody speaks, `message` `[C, S]`."""
    position, bodies = state["position"], layout.bodies
    sizes = np.array([body.size for body in bodies])
    reach = max(1.0, float((np.abs(position) + sizes).max())) + _MARGIN
    speech = _SPEECH_PIXELS if "message" in state else 0
    canvas = Canvas(
        width=_SIDE_PIXELS,
        height=_SIDE_PIXELS + speech,
        x_range=(-reach, reach),
        y_bottom=-reach * (1 + 2 * speech / _SIDE_PIXELS),
    )
    for x0, y0, x1, y1 in ((-1, -1, 1, -1), (1, -1, 1, 1), (1, 1, -1, 1), (-1, 1, -1, -1)):
        canvas.line((x0, y0), (x1, y1), 0.8 / canvas.scale, PALE)
    body_scale = 1.0 if zoom_bodies else reach / (1.0 + _MARGIN)
    # landmarks lie below agents, large ones below small ones
    for e in sorted(range(len(bodies)), key=lambda e: (e < layout.num_agents, -bodies[e].size)):
        centre = (float(position[0, e]), float(position[1, e]))
        is_agent = e < layout.num_agents
        is_soft = not is_agent and layout.landmarks[e - layout.num_agents].soft_edge
        outline = INK if is_agent else None
        canvas.disc(centre, bodies[e].size * body_scale, colours[e], outline=outline, opacity=0.35 if is_soft else 1.0)
    if speech:
        _draw_messages(canvas, reach, state["message"])
    return canvas.pixels()


def _draw_messages(canvas: Canvas, reach: float, message: Array) -> None:
    """A row of cells for each agent that speaks, darker where the number it says is larger."""
    num_words, num_speakers = message.shape
    num_cells = num_words * num_speakers + num_speakers - 1
    cell = min(0.12, 1.9 / num_cells) * reach
    y = -reach - _SPEECH_PIXELS / 2 / canvas.scale
    for speaker in range(num_speakers):
        for word in range(num_words):
            x = cell * (speaker * (num_words + 1) + word + 0.5 - num_cells / 2)
            loudness = np.clip(float(message[word, speaker]), 0.0, 1.0)
            red, green, blue = np.array(PALE) + loudness * (np.array(INK) - np.array(PALE))
            canvas.box((x, y), (0.8 * cell, 0.8 * cell), 0.0, (red, green, blue))
