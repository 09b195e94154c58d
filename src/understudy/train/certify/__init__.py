"""Certification: checks that a model is trained on exactly the tokens, masks and log-probabilities that it samples.

`certify` runs the checks before training, with temporary engines. `RunCertifier` runs them during a training run.
"""

from understudy.train.certify.certificate import Certificate, CertificateCheck, certificate_to_dict, format_certificate
from understudy.train.certify.certify_model import certify, make_certification_target
from understudy.train.certify.run_certifier import RunCertifier

__all__ = [
    "Certificate",
    "CertificateCheck",
    "RunCertifier",
    "certificate_to_dict",
    "certify",
    "format_certificate",
    "make_certification_target",
]
