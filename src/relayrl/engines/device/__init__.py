"""Device-resident training: environment, policy, rollout and gradient steps on one device, which asks the host nothing."""
