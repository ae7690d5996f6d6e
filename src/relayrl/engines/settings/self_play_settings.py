"""Self-play of a run, with the keys of Unity ML-Agents."""

from __future__ import annotations

from pydantic import Field

from relayrl.config.settings import Settings


class SelfPlaySettings(Settings):
    """Against whom the learner plays; all counts are environment steps, summed over environments."""

    save_steps: int = Field(20_000, ge=1, description="steps between snapshots of the policies that learn")
    team_change: int = Field(
        default_factory=lambda known: 5 * known.get("save_steps", 1),
        ge=1,
        description="steps after which another team learns, where teams have policies of their own; not given: 5 save_steps",
    )
    swap_steps: int = Field(
        2_000, ge=1, description="steps between draws of opponents; an environment takes them when an episode begins"
    )
    window: int = Field(10, ge=1, le=10_000, description="newest snapshots of a team that opponents are drawn from")
    play_against_latest_model_ratio: float = Field(
        0.5, ge=0.0, le=1.0, description="share of draws that give the newest policies instead of a snapshot"
    )
    initial_elo: float = Field(
        1200.0, allow_inf_nan=False, description="rating of the policies that the run begins with"
    )
    teams: dict[str, str] | None = Field(
        None,
        description="team of each agent, by agent, group, or a pattern of agents such as red_*; null: ML-Agents' ?team=N, else "
        "every group, or every agent of the only group, is a team",
    )
