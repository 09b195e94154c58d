"""Files of tasks as task sources: `load_source("tasks.jsonl")`.

rows               kinds of rows, and the reader of each
task_row           `TaskRow`: a task and what belongs beside it; functions that read fields of rows
files              data files by path, folder or `hf:owner/name`
source             `TaskFile`: the tasks of files as a `TaskSource`
source_matching    which task source plays the task of a row
config             the config section `[data]`
skyrl_rows         tasks as SkyRL's rows and back
tau_rows           tasks of tau-bench and tau2-bench
call_rows          tasks that are an instruction, actions and outputs, in other shapes
call_sequences     sequences of calls on MCP servers: rows, and dependent specs; sequence_steps, sequence_results,
                   fact_texts
step_references    references to results of earlier calls; reference_expressions is their language
conversation_rows  recorded conversations; told_facts
episode_rows       stored episodes
wrapped_rows       rows inside a list of messages or a chat completion
call_matching      plays tasks by comparing calls; inferred_tools
prompt_rows        questions with answers, which a reward function scores
near_duplicates    tasks that are nearly the same
splits             assign tasks to splits
"""
