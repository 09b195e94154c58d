"""Reports of evaluations and of training runs.

report      the rows of a report, and what they show: the verdict, the hardest tasks, the causes of failures
groups      the groups of tasks whose success a report shows
tables      the cells of a report's tables
text        a report as text for a terminal
markdown    a report as Markdown
as_json     a report as JSON-compatible values
files       read and write the files of reports
"""
