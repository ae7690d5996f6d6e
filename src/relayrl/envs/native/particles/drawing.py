"""The picture of a particle world: landmarks, agents, and underneath what is being said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.native.particles.layout import Layout
from relayrl.envs.native.rasteriser import INK, PALE, Canvas, Colour

_SIDE = 300
_SPEECH_HEIGHT = 0.16


def draw_particles(
    layout: Layout, state: Mapping[str, Array], colours: Sequence[Colour], *, zoom_bodies: bool
) -> Array:
    """`[H, W, 3]` picture of one world; `state` holds `position` `[2, E]` and, where anybody speaks, `message` `[C, S]`."""
    position = state["position"]
    reach = max(1.0, float(np.abs(position).max())) + 0.12
    canvas = Canvas(width=_SIDE, height=_SIDE, x_range=(-reach, reach), y_bottom=-reach)
    body_scale = 1.0 if zoom_bodies else reach / 1.12
    bodies = layout.bodies
    edge = 1.0
    for start, end in (((-edge, -edge), (edge, -edge)), ((edge, -edge), (edge, edge))):
        canvas.line(start, end, 0.8 / canvas.scale, PALE)
        canvas.line((-start[0], -start[1]), (-end[0], -end[1]), 0.8 / canvas.scale, PALE)
    # landmarks lie below agents, large ones below small ones
    order = sorted(range(len(bodies)), key=lambda e: (e < layout.num_agents, -bodies[e].size))
    for e in order:
        centre = (float(position[0, e]), float(position[1, e]))
        is_soft = e >= layout.num_agents and layout.landmarks[e - layout.num_agents].soft_edge
        outline = None if e >= layout.num_agents else INK
        canvas.disc(centre, bodies[e].size * body_scale, colours[e], outline=outline, opacity=0.35 if is_soft else 1.0)
    if "message" in state:
        _draw_messages(canvas, reach, state["message"])
    return canvas.pixels()


def _draw_messages(canvas: Canvas, reach: float, message: Array) -> None:
    """A row of cells for each agent that speaks, darker where the number it says is larger."""
    num_words, num_speakers = message.shape
    cell = min(0.12 * reach, 1.9 * reach / (num_words * num_speakers + num_speakers))
    width = cell * (num_words * num_speakers + num_speakers - 1)
    for speaker in range(num_speakers):
        for word in range(num_words):
            x = -width / 2 + cell * (speaker * (num_words + 1) + word + 0.5)
            loudness = float(np.clip(message[word, speaker], 0.0, 1.0))
            colour = tuple(p + loudness * (i - p) for p, i in zip(PALE, INK, strict=True))
            canvas.box((x, -reach + 0.07 * reach), (cell * 0.8, cell * 0.8), 0.0, (colour[0], colour[1], colour[2]))
