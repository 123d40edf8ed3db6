"""What each event about an annotation has: of which pod it is, what it asks for, what became of that."""

from __future__ import annotations

from otelgpu.families.switches import names
from otelgpu.model.resource import NAMESPACE, POD_NAME, POD_UID, AttributeValue
from otelgpu.model.switches import PodSwitch
from otelgpu.model.text import printable


def attributes_of(
    annotation: str, switch: PodSwitch, state: str, reason: str = ""
) -> dict[str, AttributeValue]:
    """``annotation``: its name. What the pod's author wrote is made printable."""
    attributes: dict[str, AttributeValue] = {
        names.STATE: state,
        names.ANNOTATION: annotation,
        names.VALUE: printable(switch.value),
        POD_UID: printable(switch.uid),
        POD_NAME: printable(switch.pod),
        NAMESPACE: printable(switch.namespace),
    }
    if reason:
        attributes[names.REASON] = reason
    if switch.manager:
        attributes[names.MANAGER] = printable(switch.manager)
    return attributes
