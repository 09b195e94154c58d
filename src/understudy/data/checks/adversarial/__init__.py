"""Scripted strategies that do not do the task: each must earn almost nothing. `check --adversarial` plays them.

knowledge   what the strategies know: the tasks, their gold turns and facts, the tools, the whole database
answers     strategies that tell facts they have not read, or too many facts
writes      strategies that change things against the policy, or change the wrong things
replies     strategies that only talk: floods, empty texts, forged texts
custom      loads strategies that users write
suite       plays all strategies on sampled tasks, and reports what each earns
"""
