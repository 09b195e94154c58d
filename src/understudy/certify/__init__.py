"""Certification: proof that what is sampled is what is trained on, for one model, its template and its engine.

`certify` proves it before training, with engines of its own; a `Watch` proves it in a training run.
"""

from understudy.certify.certificate import Certificate, Check, as_json, as_text
from understudy.certify.proof import certify, subject_of
from understudy.certify.watch import Watch

__all__ = ["Certificate", "Check", "Watch", "as_json", "as_text", "certify", "subject_of"]
