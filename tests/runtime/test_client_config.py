"""The client's configuration: defaults, errors, and changes while the agent runs."""

import json
import logging
import re
from pathlib import Path

import pytest
from runtime_fakes import ListSink, fixed_policy, obs

from relayrl.config.settings import Settings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.agents.client_config import LIVE_KEYS, ClientConfig, read_client_config
from relayrl.sinks.contract import open_source
from waiting import wait_until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "client.json"


@pytest.fixture(autouse=True)
def keep_log_level():
    logger = logging.getLogger("relayrl")
    level = logger.level
    yield
    logger.setLevel(level)


def write(path, **values) -> None:
    path.write_text(json.dumps(values))


def test_defaults_are_those_that_users_know():
    config = ClientConfig()
    addresses = config.addresses
    ports = [addresses.model, addresses.trajectories, addresses.agent_listener, addresses.scaling, addresses.inference]
    assert [address.rpartition(":")[2] for address in ports] == ["50051", "7776", "7777", "7778", "7779"]
    assert all(address.startswith("tcp://127.0.0.1:") for address in ports)
    assert config.config_polling_s == 10
    assert config.max_traj_length == 1000
    assert config.router_buffer.max_trajectories_per_actor == 1000


def test_an_unknown_key_is_an_error_with_a_hint(path):
    write(path, router_buffer={"max_trajectories_per_actr": 5})
    with pytest.raises(UnknownNameError, match="max_trajectories_per_actor"):
        read_client_config(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not JSON"),
        ("[]", "one JSON object"),
        ('{"router_scale": 0}', "router_scale"),
        ('{"sink": {"settings": {"max_buffered": 1}}}', "max_buffered_bytes"),
    ],
)
def test_a_broken_file_says_what_is_wrong(path, text, match):
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        AgentBuilder().default_model(fixed_policy()).config_path(path).build()


def test_a_missing_file_is_an_error(path):
    with pytest.raises(ConfigError, match="cannot read"):
        AgentBuilder().default_model(fixed_policy()).config_path(path).build()


def test_what_the_builder_says_stands_above_the_file(path):
    write(path, router_scale=3, max_traj_length=7, sink={"urls": ["csv:elsewhere"], "flush_interval_s": 0.5})
    agent = AgentBuilder().default_model(fixed_policy()).config_path(path).router_scale(2).sink("memory:x").build()
    config = agent.get_config()
    assert (config.router_scale, config.max_traj_length) == (2, 7)
    assert (config.sink.urls, config.sink.flush_interval_s) == (("memory:x",), 0.5)


def test_an_edit_is_applied_while_the_agent_runs(path, tmp_path):
    write(path, config_polling_s=0.05)
    sink = ListSink()
    with AgentBuilder().default_model(fixed_policy()).config_path(path).sink(sink).build() as agent:
        write(
            path,
            config_polling_s=0.05,
            router_scale=3,
            log_level="debug",
            max_traj_length=2,
            router_buffer={"max_trajectories_per_actor": 7},
        )
        wait_until(lambda: agent.metrics["runtime/config_reloads_total"].value)
        assert agent.get_config().router_scale == 3
        assert agent.metrics["runtime/routers_count"].value == 3
        assert agent._coordinator._dispatcher._routers[0].buffer._bounds.max_trajectories_per_actor == 7
        assert logging.getLogger("relayrl").level == logging.DEBUG
        ids = agent.get_actor_ids()
        for t in range(5):
            agent.request_action(ids, obs(t))
        agent.flush()
        assert sink.num_steps == 4


def test_a_broken_edit_is_refused_with_a_log_line_and_the_old_configuration_stays(path, caplog):
    write(path, router_scale=2)
    with AgentBuilder().default_model(fixed_policy()).config_path(path).build() as agent:
        before = agent.get_config()
        for text in ("{", '{"router_scale": -1}', '{"ruoter_scale": 1}', '{"sink": {"urls": ["nonsense:x"]}}'):
            path.write_text(text)
            caplog.clear()
            assert not agent.check_config_now()
            assert not agent.check_config_now()  # refused once, not at every poll
            (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
            assert "refused" in record.message
            assert agent.get_config() == before
            assert agent.metrics["runtime/routers_count"].value == 2
        write(path, router_scale=1)
        assert agent.check_config_now()
        assert agent.metrics["runtime/routers_count"].value == 1


def test_an_edit_changes_only_what_was_edited(path):
    write(path, router_scale=1)
    with AgentBuilder().default_model(fixed_policy()).config_path(path).build() as agent:
        agent.scale_throughput(3)
        write(path, router_scale=1, max_traj_length=10)
        assert agent.check_config_now()
        assert agent.get_config().router_scale == 4
        assert agent.get_config().max_traj_length == 10


def test_other_sinks_take_over_without_losing_a_step(path, tmp_path):
    first, second = f"arrow:{tmp_path / 'first'}", f"arrow:{tmp_path / 'second'}"
    write(path, sink={"urls": [first]})
    with AgentBuilder().actor_count(2).default_model(fixed_policy()).config_path(path).build() as agent:
        ids = agent.get_actor_ids()

        def play() -> None:
            for t in range(20):
                agent.request_action(ids, obs(t, t))
                agent.flag_last_action(ids)

        play()
        write(path, sink={"urls": [second]})
        assert agent.check_config_now()
        agent.flush()
        play()
    with open_source(first) as one, open_source(second) as other:
        assert (one.count().num_steps, other.count().num_steps) == (40, 40)


def test_a_key_that_needs_a_start_is_named(path, caplog):
    write(path)
    with AgentBuilder().default_model(fixed_policy()).config_path(path).build() as agent:
        write(path, addresses={"model": "tcp://127.0.0.1:1"})
        assert agent.check_config_now()
        assert "applies when the agent starts again" in caplog.text


def test_another_file_may_be_followed(path, tmp_path):
    write(path, router_scale=1)
    other = tmp_path / "other.json"
    other.write_text('{"router_scale": 2}')
    with AgentBuilder().default_model(fixed_policy()).config_path(path).build() as agent:
        agent.set_config_path(other)
        assert agent.metrics["runtime/routers_count"].value == 2
        with pytest.raises(ConfigError, match="cannot read"):
            agent.set_config_path(tmp_path / "missing.json")
        other.write_text('{"router_scale": 3}')
        assert agent.check_config_now()
        assert agent.get_config().router_scale == 3


def test_the_page_lists_every_key_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text()
    listed = re.findall(r"^\| `([a-z_.]+)` \| (\S+) \| (yes|at start) \| (.+) \|$", page, re.MULTILINE)
    assert listed == list(described(ClientConfig))


def described(settings: type[Settings], prefix: str = "", live: str = ""):
    for name, field in settings.model_fields.items():
        applies = live or ("yes" if name in LIVE_KEYS else "at start")
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from described(field.annotation, f"{prefix}{name}.", applies)
        else:
            default = field.get_default(call_default_factory=True)
            text = "[]" if default == () else str(getattr(default, "value", default))
            yield f"{prefix}{name}", text, applies, field.description


def test_sinks_of_several_calls_add_up(tmp_path):
    urls = [f"arrow:{tmp_path / name}" for name in ("one", "two")]
    builder = AgentBuilder().default_model(fixed_policy()).sink(urls[0]).sink(urls[1])
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        agent.request_action(ids, obs(1))
        agent.flag_last_action(ids)
    for url in urls:
        with open_source(url) as source:
            assert source.count().num_steps == 1
    for first, second in [("memory:a", ListSink()), (ListSink(), "memory:a"), (ListSink(), ListSink())]:
        with pytest.raises(ConfigError, match="FanOutSink"):
            AgentBuilder().sink(first).sink(second)
