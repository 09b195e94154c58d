"""Files of tasks, and of conversations. Each step streams: an iterator in, one out.

items        an item with the place it came from; or what is wrong there
read         values out of JSONL, JSON, parquet and Python files (`literals`)
rows, tau    tasks as SkyRL's rows; tasks out of tau-style ones
source       files, or a domain, as tasks
verify       whether a task can be trained on
similar      near-duplicates
parts        which part of a split a task goes to
write        output that is whole or not there, and can be gone on with
convert      from one form to another, in parts
synthesize   new tasks from a domain's generator, or proposed by a language model (`propose`)
specs        samples from dependent specs; `making` writes all three to files
preferences  conversations to imitate, or to prefer one to the other
conversations the same out of the files of other trainers
export       conversations for other trainers: `llamafactory`, `trl`, `openai`
describe     what a set of tasks holds; `plots` as pictures
"""
