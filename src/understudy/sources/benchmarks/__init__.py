"""tau-bench and tau2-bench as environments, loaded from your own checkout of them."""
