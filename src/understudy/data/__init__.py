"""Files of tasks and of conversations. Each step streams: it takes an iterator and returns one.

task_input       tasks from files, or from a domain's frozen tasks, as a stream
skyrl_rows       convert tasks to SkyRL's rows and back
tau_tasks        convert tau-style tasks
check            check that a domain is sound
verify           check that a task can be trained on
near_duplicates  find tasks that are nearly the same
splits           assign tasks to splits
dataset_files    files and folders of rows
tool_examples    rows of questions and answers as the examples of a `ToolDataset`
writer           output that is either complete or absent, and can be resumed
convert          convert tasks from one form to another
stats            statistics of a set of tasks; `plots` draws them
synthesis/       new tasks: from generators, from a language model, from dependent specs
conversations/   training conversations, and the formats of other trainers
collect/         training conversations from episodes
"""
