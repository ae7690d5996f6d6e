"""Acting: the agent that a user's simulator asks for actions, the collector that steps a vector environment, evaluation.

Start with `relayrl.runtime.agents.agent_builder.AgentBuilder`; docs/runtime.md shows the way.
"""
