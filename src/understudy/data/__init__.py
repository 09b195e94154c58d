"""Files of tasks and of conversations. Each step streams: it takes an iterator and returns one.

task_input       tasks from files, or from a domain's frozen tasks, as a stream
tool_examples    rows of questions and answers as the examples of a `ToolDataset`
writer           output that is either complete or absent, and can be resumed
convert          convert tasks from one form to another
stats            statistics of a set of tasks; `plots` draws them
checks/          check that a source is sound, and that a task can be trained on
synthesis/       new tasks: from generators, from a language model, from dependent specs
conversations/   training conversations, and the formats of other trainers
collect/         training conversations from episodes
"""
