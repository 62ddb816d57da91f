"""The service account that a program uses, as the owner of what the program creates in its own namespace.

Kubernetes deletes an object when its owner is gone. An installer removes the service accounts of the driver, but
does not know of the Secrets and the Lease that programs create: without an owner, keys would stay behind.
"""

from imex_dra.api.meta import OwnerReference
from imex_dra.api.views import SELF_SUBJECT_REVIEWS, SelfSubjectReview
from imex_dra.base.errors import Forbidden, NotFound
from imex_dra.kube.client import Client


async def own_account(client: Client, namespace: str) -> tuple[OwnerReference, ...]:
    """Empty if the client has none of this namespace: an owner must be in the namespace of its object."""
    try:
        review = await client.create(SELF_SUBJECT_REVIEWS, SelfSubjectReview())
    except (Forbidden, NotFound):  # it is not needed for anything else
        return ()
    user, prefix = review.status.user_info, f"system:serviceaccount:{namespace}:"
    if not user.uid or not user.username.startswith(prefix):
        return ()
    return (OwnerReference("v1", "ServiceAccount", user.username.removeprefix(prefix), user.uid),)
