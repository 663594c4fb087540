"""What tokens are for: `resource` and `scope` of a request come in; they are checked, and scopes go out."""

from collections.abc import Collection, Mapping

from dovetail.auth.claims import comparable_url
from dovetail.auth.metadata import OFFLINE_ACCESS
from dovetail.authserver.refusals import OAuthRefusal

MAX_SCOPES = 200


class Target:
    """The one resource that tokens are made for, and its scopes."""

    def __init__(self, resource: str, scopes: Mapping[str, str]) -> None:
        self.resource = resource
        self.scopes = scopes
        self._same = comparable_url(resource)

    def check_resource(self, given: str | None) -> None:
        """RFC 8707. None is fine: there is only one."""
        if given is not None and comparable_url(given) != self._same:
            raise OAuthRefusal("invalid_target", "No tokens are made here for this resource")

    def wanted(self, given: str | None, limit: Collection[str] | None) -> frozenset[str]:
        """The scopes that are asked for; all that are possible, if none is named."""
        possible = frozenset(self.scopes if limit is None else limit)
        if given is None:
            return possible
        words = given.split(" ")
        scopes = frozenset(words) - {"", OFFLINE_ACCESS}  # whether there are refresh tokens is said by the grant types
        if len(words) > MAX_SCOPES or not scopes <= possible:
            raise OAuthRefusal("invalid_scope", "A scope is not known here, or this program may not have it")
        return scopes
