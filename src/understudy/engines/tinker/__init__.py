"""The engine `tinker`: a server of the Tinker API, such as SkyRL's, holds the weights, samples and trains."""
