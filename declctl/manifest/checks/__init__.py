"""What is wrong with a document: every fault at once, and each cause only once.

The front is `check`. The checks run one after the other over the same plain data, each made to hold
its tongue about what another has blamed: a missing name is not also an unknown reference.
"""

from declctl.manifest.checks.findings import Findings
from declctl.manifest.checks.references import check_references
from declctl.manifest.checks.rules import check_cache, check_refusals, check_traps
from declctl.manifest.checks.structure import check_structure
from declctl.manifest.checks.values import check_values
from declctl.manifest.diagnostics import Diagnostic
from declctl.manifest.document import Document
from declctl.manifest.shape import controller

__all__ = ["check"]


def check(document: Document) -> tuple[Diagnostic, ...]:
    """All faults of a Controller document, errors and warnings, in no particular order."""
    shape = controller()
    findings = Findings(document)
    check_structure(findings, shape)
    check_traps(findings, shape)
    check_values(findings, shape)
    check_references(findings)
    check_cache(findings)
    check_refusals(findings, shape)
    return findings.diagnostics
