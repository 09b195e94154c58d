"""SkyRL without a GPU: workers, an inference engine, and the experiment that uses them, for `engine.experiment`."""
