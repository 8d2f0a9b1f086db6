"""Teachers: each token that the policy sampled is scored by other models."""
