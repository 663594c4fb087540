"""OpenAPI: the operations of an HTTP API as the tools of a server."""

from dovetail.openapi.openapi import OpenApi as OpenApi
