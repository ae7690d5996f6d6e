"""Pictures of episodes: which frames they hold, where they are written, and what is refused before anything is played."""

import io
import itertools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from PIL import Image

import relayrl
from cli_in_process import relayrl as command
from engines.filmed_environments import OneLicence, Undrawable
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.rendering import RenderMode, VideoFormat
from relayrl.errors import ConfigError, EnvError
from relayrl.runtime.pictures.film import tiled
from relayrl.runtime.pictures.video_files import encode, require_encoder

TOYS = "engines.filmed_environments"
QUICK = {
    "time_horizon": 8,
    "hidden_sizes": [4],
    "train_pi_iters": 1,
    "train_vf_iters": 1,
    "tensorboard": False,
    "evaluation.episodes": 2,
}


def train(path, env=f"{TOYS}:Coloured", steps=64, num_envs=2, **settings):
    return relayrl.train(env, steps=steps, num_envs=num_envs, run_dir=path, settings=QUICK | settings, progress=False)


def greys(path, column=0):
    """The grey of each frame, at a pixel of the given column."""
    with Image.open(path) as film:
        frames = []
        for number in range(film.n_frames):
            film.seek(number)
            frames.append(int(np.asarray(film.convert("RGB"))[0, column, 0]))
        return frames


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("pictures") / "run")


def test_a_film_holds_the_first_episode_with_its_last_frame(run):
    result = run.evaluate(episodes=4, render="gif")
    assert result.picture == run.path / "episode.gif"
    assert greys(result.picture) == [0, 40, 80, 120, 160, 200]
    assert result.returns == run.evaluate(episodes=4).returns == (5.0,) * 4


def test_frames_last_as_long_as_the_environment_says(run):
    with Image.open(run.evaluate(episodes=1, render="gif").picture) as film:
        assert film.info["duration"] == 100  # 10 frames/s


def test_tiles_wait_for_the_longest_episode(run):
    with Image.open(run.evaluate(episodes=2, render="gif", tiles=2).picture) as film:
        assert film.size == (24 + 4 + 24, 16)
    assert greys(run.path / "episode.gif", column=30) == [0, 40, 80, 120, 160, 200]


def test_a_film_is_the_same_with_workers(run):
    done = [
        command("evaluate", str(run.path), "--trust", "--episodes", "2", "--render", "gif", "--tiles", "2", *more)
        for more in ((), ("--workers", "2"))
    ]
    assert [one.returncode for one in done] == [0, 0], done
    assert done[0].stdout == done[1].stdout
    assert greys(run.path / "episode.gif", column=30) == [0, 40, 80, 120, 160, 200]


def test_mp4_has_the_frames_and_the_rate(run):
    picture = run.evaluate(episodes=1, render="mp4").picture
    program = require_encoder(VideoFormat.MP4).get_ffmpeg_exe()
    decode = [program, "-i", str(picture), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(decode, capture_output=True, check=True, timeout=60)
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, 16, 24, 3)
    np.testing.assert_allclose(frames.mean((1, 2, 3)), [0, 40, 80, 120, 160, 200], atol=3)
    assert b"10 fps" in done.stderr


def test_odd_sizes_fit_into_mp4():
    frames = [np.full((15, 21, 3), grey, np.uint8) for grey in (0, 200)]
    assert encode(frames, (15, 21, 3), VideoFormat.MP4, 10.0)[4:8] == b"ftyp"


def test_a_missing_encoder_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    done = command("evaluate", str(run.path), "--trust", "--render", "mp4")
    assert (done.returncode, "relayrl[video]" in done.complaint) == (2, True)


def test_an_environment_without_the_mode_is_refused_before_it_is_played(tmp_path):
    undrawn = train(tmp_path / "run", env=f"{TOYS}:Undrawable")
    before = Undrawable.num_steps
    with pytest.raises(ConfigError, match="no render mode 'rgb_array'"):
        undrawn.evaluate(render="gif")
    with pytest.raises(ConfigError, match="no render mode 'rgb_array'"):
        train(tmp_path / "other", env=f"{TOYS}:Undrawable", **{"evaluation.video": "gif"})
    assert Undrawable.num_steps == before
    assert not (tmp_path / "other").exists()


def test_what_is_missing_to_draw_is_missed_before_a_run_begins(tmp_path):
    with pytest.raises(
        ConfigError, match=r"cannot be drawn: render\(\) raised ModuleNotFoundError: No module named 'painter'"
    ):
        train(tmp_path / "run", env=f"{TOYS}:WithoutLibrary", **{"evaluation.video": "gif"})
    assert not (tmp_path / "run").exists()


def test_unknown_kinds_of_pictures_are_refused(run):
    assert command("evaluate", str(run.path), "--trust", "--render", "avi").complaint.endswith("known: gif, human, mp4")
    with pytest.raises(ConfigError, match="no render mode 'human'"):
        run.evaluate(render="human")


def test_a_run_films_its_evaluations_and_learns_the_same(tmp_path):
    video = {"evaluation.interval": 16, "evaluation.video": "gif", "evaluation.video_interval": 32}
    filmed = train(tmp_path / "filmed", **video, **{"evaluation.video_envs": 2})
    plain = train(tmp_path / "plain", **{"evaluation.interval": 16})
    names = sorted(path.name for path in (filmed.path / "videos").iterdir())
    assert names == ["final.gif", "step-0000000032.gif", "step-0000000064.gif"]
    assert greys(filmed.path / "videos" / "final.gif") == [0, 40, 80, 120, 160, 200]
    assert filmed.result.parameter_hash == plain.result.parameter_hash
    assert filmed.result.returns == plain.result.returns


@pytest.mark.parametrize("env", ["pettingzoo:classic.tictactoe_v3", "mpe2:simple_spread_v3", "native:simple_tag"])
def test_libraries_are_drawn(tmp_path, monkeypatch, env):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    played = train(tmp_path / "run", env=env, steps=32)
    result = played.evaluate(episodes=2, render="gif", tiles=2)
    with Image.open(result.picture) as film:
        drawn = [np.asarray(film.convert("RGB")) for number in range(film.n_frames) if film.seek(number) is None]
    assert len(drawn) >= 5
    assert all((one != other).any() for one, other in itertools.pairwise(drawn))


@pytest.mark.parametrize(
    "factory", [None, lambda: gymnasium.make_vec("CartPole-v1", 2, "sync", render_mode="rgb_array")]
)
def test_vector_environments_of_gymnasium_are_drawn(factory, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    settings = EnvSettings(num_envs=2, vector="own" if factory is None else "auto")
    env = make_vector(factory or "CartPole-v1", settings, render=RenderMode.RGB_ARRAY)
    env.reset(seed=0)
    first, second = env.frames([0, 1])
    assert (first.shape, first.dtype) == ((400, 600, 3), np.uint8)
    assert (first != second).any()
    env.close()


def test_exclusive_environments_are_one_set(tmp_path):
    often = {"evaluation.interval": 16, "evaluation.episodes": 3}
    with pytest.raises(EnvError, match="no licence left"):
        train(tmp_path / "two", env=f"{TOYS}:OneLicence", num_envs=1, **often)
    OneLicence.num_open = 0
    one = train(
        tmp_path / "one",
        env=f"{TOYS}:OneLicence",
        num_envs=1,
        **often,
        **{"environment.exclusive": True, "evaluation.video": "gif"},
    )
    assert one.result.returns == (5.0, 5.0, 5.0)
    assert OneLicence.num_open == 0
    assert greys(one.path / "videos" / "final.gif") == [0, 40, 80, 120, 160, 200]
    # Episodes that an evaluation gave up do not count, and none is longer than it was.
    assert set(one.history["episode/length_mean"]) == {5.0}


def test_exclusive_evaluations_leave_no_trace_where_states_can_be_saved(tmp_path):
    settings = {"evaluation.interval": 16, "environment.exclusive": True}
    lent = train(tmp_path / "lent", env="native:CartPole", steps=96, **settings)
    plain = train(tmp_path / "plain", env="native:CartPole", steps=96)
    assert lent.result.parameter_hash == plain.result.parameter_hash
    assert lent.history["episode/length_mean"][-1] == plain.history["episode/length_mean"][-1]


def test_exclusive_and_threaded_do_not_go_together(tmp_path):
    settings = {"evaluation.interval": 16, "environment.exclusive": True, "trainer.threaded": True}
    with pytest.raises(ConfigError, match=r"environment\.exclusive lends"):
        train(tmp_path / "run", env="native:CartPole", **settings)


def test_evaluations_have_no_more_environments_than_training(tmp_path, monkeypatch):
    asked = []
    real = relayrl.runtime.evaluation.make_vector

    def counted(env, settings, **more):
        asked.append((settings.num_envs, settings.workers))
        return real(env, settings, **more)

    monkeypatch.setattr("relayrl.runtime.evaluation.make_vector", counted)
    limited = train(tmp_path / "run", env="native:CartPole", num_envs=3)
    limited.evaluate(episodes=20)
    limited.evaluate(episodes=20, num_envs=5)
    train(tmp_path / "set", env="native:CartPole", num_envs=3, **{"evaluation.max_envs": 1})
    assert asked == [(2, 0), (3, 0), (5, 0), (1, 0)]


def test_tiles_are_as_square_as_they_can_be_and_fit():
    frames = [np.full((100, 200, 3), value, np.uint8) for value in (10, 20, 30)]
    assert tiled(frames[:1]).shape == (100, 200, 3)
    assert tiled(frames).shape == (204, 404, 3)
    small = tiled(frames, max_side=210)
    assert small.shape == (104, 204, 3)
    assert [int(small[y, x, 0]) for y, x in ((0, 0), (0, 150), (60, 0), (60, 150))] == [10, 20, 30, 200]
    with Image.open(io.BytesIO(encode([small, small], small.shape, VideoFormat.GIF, 20.0))) as film:
        assert film.size == (204, 104)
