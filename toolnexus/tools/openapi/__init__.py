"""The operations of an OpenAPI document as tools."""

from toolnexus.tools.openapi.operations import Operation
from toolnexus.tools.openapi.tools import openapi_tools

__all__ = ["Operation", "openapi_tools"]
