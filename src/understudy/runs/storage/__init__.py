"""The files of a run or an evaluation: checkpoints, episodes, tasks, training data, and the folder's lock."""
