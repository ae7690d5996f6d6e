"""Frames as files: GIF through pillow, MP4 (H.264) through the ffmpeg that the package imageio-ffmpeg carries."""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.rendering import VideoFormat
from relayrl.errors import DiskError, MissingExtraError

_GIF_MIN_FRAME_MS = 20
"""Viewers show frames that are to last less than this for a tenth of a second."""
_GIF_COLOURS = 256
_ENCODER_TIMEOUT_S = 60.0


def require_encoder(file_format: VideoFormat) -> Any:
    """What writes files of the format; raises `MissingExtraError` where it is not installed."""
    if file_format is VideoFormat.GIF:
        return importlib.import_module("PIL.Image")
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ImportError as error:
        raise MissingExtraError("an mp4 video", "video") from error


def encode(frames: Iterable[Array], shape: tuple[int, ...], file_format: VideoFormat, frames_per_s: float) -> bytes:
    """The content of a file of `frames`, `[H, W, 3]` uint8 of this shape each, at least one."""
    if file_format is VideoFormat.GIF:
        return _gif(frames, frames_per_s)
    return _mp4(frames, shape, frames_per_s)


def smaller(frame: Array, factor: int) -> Array:
    """The picture with means of squares of `factor` pixels in place of each."""
    return frame if factor == 1 else np.asarray(require_encoder(VideoFormat.GIF).fromarray(frame).reduce(factor))


def _gif(frames: Iterable[Array], frames_per_s: float) -> bytes:
    pillow = require_encoder(VideoFormat.GIF)
    images = [pillow.fromarray(frame).quantize(_GIF_COLOURS, method=pillow.Quantize.FASTOCTREE) for frame in frames]
    frame_ms = max(_GIF_MIN_FRAME_MS, round(1000 / frames_per_s))
    content = io.BytesIO()
    images[0].save(content, "gif", save_all=True, append_images=images[1:], duration=frame_ms, loop=0)
    return content.getvalue()


def _mp4(frames: Iterable[Array], shape: tuple[int, ...], frames_per_s: float) -> bytes:
    program = require_encoder(VideoFormat.MP4).get_ffmpeg_exe()
    height, width = (side + side % 2 for side in shape[:2])  # H.264 halves both for its colours
    taken = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{frames_per_s:g}", "-i", "-"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        given = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", str(path)]
        with subprocess.Popen(
            [program, "-y", "-loglevel", "error", *taken, *given], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as encoder:
            # It may end early, of a wrong argument: what it has to say is read below.
            with contextlib.suppress(BrokenPipeError):
                for frame in frames:
                    encoder.stdin.write(fitted(frame, (height, width, 3)).tobytes())  # type: ignore[union-attr]
            complaint = encoder.communicate(timeout=_ENCODER_TIMEOUT_S)[1].decode(errors="replace")
        if encoder.returncode:
            raise DiskError(f"ffmpeg wrote no mp4: {' '.join(complaint.split()):.300}")
        return path.read_bytes()


def fitted(frame: Array, shape: tuple[int, ...]) -> Array:
    """The frame, cut or with its edge repeated so that it has this shape."""
    if frame.shape == shape:
        return frame
    cut = frame[: shape[0], : shape[1]]
    return np.pad(cut, [(0, shape[0] - cut.shape[0]), (0, shape[1] - cut.shape[1]), (0, 0)], mode="edge")
