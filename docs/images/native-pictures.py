"""Draws `native-environments.png` and `native-environments.gif`, beside this file: `python docs/images/native-pictures.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from gymnasium import spaces
from PIL import Image, ImageDraw, ImageFont

import relayrl

HERE = Path(__file__).parent
CAPTION_PIXELS = 26


def picture_of(name: str, seed: int = 2, num_steps: int = 12) -> Image.Image:
    """One world after some random steps."""
    env = relayrl.make_env(f"native:{name}", num_envs=1)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(num_steps):
        actions = {}
        for key, group in env.groups.items():
            space, shape = group.action_space, (1, group.num_agents)
            if isinstance(space, spaces.Discrete):
                actions[key] = rng.integers(space.n, size=shape)
            else:
                actions[key] = rng.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32)
        env.step(actions)
    return Image.fromarray(env.render(0))


def sheet(columns: int = 4, side: int = 240) -> Image.Image:
    """All environments, captioned."""
    command = [sys.executable, "-m", "relayrl", "list", "envs"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    names = [name.removeprefix("native:") for name in listed if name.startswith("native:")]
    rows = -(-len(names) // columns)
    page = Image.new("RGB", (columns * (side + 8) + 8, rows * (side + CAPTION_PIXELS + 8) + 8), (255, 255, 255))
    font = ImageFont.load_default(size=14)
    for i, name in enumerate(names):
        picture = picture_of(name)
        scale = side / max(picture.size)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS
        )
        x, y = 8 + (i % columns) * (side + 8), 8 + (i // columns) * (side + CAPTION_PIXELS + 8)
        tile = Image.new("RGB", (side, side), (250, 250, 247))
        tile.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
        page.paste(tile, (x, y))
        ImageDraw.Draw(page).text((x + side / 2, y + side + CAPTION_PIXELS / 2), name, (44, 49, 58), font, anchor="mm")
    return page


def moves_towards(offset: np.ndarray) -> np.ndarray:
    """The discrete move along the longer side of `offset` […, 2]."""
    x, y = offset[..., 0], offset[..., 1]
    along_x = np.where(x > 0, 2, 1)
    along_y = np.where(y > 0, 4, 3)
    return np.where(np.maximum(np.abs(x), np.abs(y)) < 0.05, 0, np.where(np.abs(x) > np.abs(y), along_x, along_y))


def act(name: str, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Simple rules that do something worth watching."""
    if name == "CartPole":
        x, v, angle, spin = obs["agent"][0, 0]
        return {"agent": np.array([[int(angle + 0.3 * spin + 0.05 * x + 0.1 * v > 0)]])}
    if name == "Pendulum":
        cos, sin, spin = obs["agent"][0, 0]
        energy = spin * spin / 6 + 5 * (cos - 1)
        balance = -10 * np.arctan2(sin, cos) - 3 * spin
        torque = balance if cos > 0.85 else -np.sign(spin + 1e-3) * np.sign(energy) * 2
        return {"agent": np.full((1, 1, 1), np.clip(torque, -2, 2), np.float32)}
    if name == "simple_spread":
        landmarks = obs["agent"][:, :, 4:10].reshape(1, 3, 3, 2)
        mine = landmarks[:, np.arange(3), np.arange(3)] - obs["agent"][:, :, :2] * 0.3
        return {"agent": moves_towards(mine)}
    hunters, prey = (obs[key] for key in obs)
    chase = moves_towards(hunters[:, :, 12:14] - 0.3 * hunters[:, :, :2])
    flee = -prey[:, :, 8:14].reshape(1, 1, 3, 2)
    flee = (flee / (np.linalg.norm(flee, axis=-1, keepdims=True) ** 2 + 0.05)).sum(2) - 9 * prey[:, :, 2:4] * (
        np.abs(prey[:, :, 2:4]) > 0.7
    )
    return dict(zip(obs, (chase, moves_towards(flee)), strict=True))


def animation(num_frames: int = 75, height: int = 150) -> list[Image.Image]:
    """Four environments side by side."""
    names = ("CartPole", "Pendulum", "simple_spread", "simple_tag")
    envs, seen = [], []
    for name in names:
        options = {"max_cycles": 25} if name.startswith("simple") else {}
        env = relayrl.make_env(f"native:{name}", num_envs=1, **options)
        result = env.reset(seed=5)
        envs.append(env)
        seen.append({key: group.obs.copy() for key, group in result.groups.items()})
    frames = []
    for _ in range(num_frames):
        pictures = [Image.fromarray(env.render(0)) for env in envs]
        pictures = [p.resize((round(p.width * height / p.height), height), Image.Resampling.LANCZOS) for p in pictures]
        frame = Image.new("RGB", (sum(p.width + 6 for p in pictures) - 6, height), (255, 255, 255))
        x = 0
        for picture in pictures:
            frame.paste(picture, (x, 0))
            x += picture.width + 6
        frames.append(frame)
        for i, (name, env) in enumerate(zip(names, envs, strict=True)):
            step = env.step(act(name, seen[i]))
            seen[i] = {key: group.obs.copy() for key, group in step.groups.items()}
    # one palette for all frames: only what moves is stored again
    palette = Image.new("RGB", (frames[0].width, 4 * height))
    for row, frame in enumerate(frames[:: num_frames // 4][:4]):
        palette.paste(frame, (0, row * height))
    shared = palette.quantize(128, method=Image.Quantize.MAXCOVERAGE)
    return [frame.quantize(palette=shared, dither=Image.Dither.NONE) for frame in frames]


if __name__ == "__main__":
    sheet().quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        HERE / "native-environments.png", optimize=True
    )
    first, *rest = animation()
    first.save(HERE / "native-environments.gif", save_all=True, append_images=rest, duration=80, loop=0, optimize=True)
