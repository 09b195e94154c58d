"""Parts for writing domains: task generators and builders, scenarios, identification, payments. The shipped domains
use them.
"""
