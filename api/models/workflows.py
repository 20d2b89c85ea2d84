"""Requests of the workflow and instance resources."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, UnsetType

from api.models.fields import BusinessKey, Labels, Reason, Request, Revision, Traceparent, raw_schema
from api.models.signals import FirstSignal

SOURCE_LENGTH_MAX = 256 * 1024


class WorkflowSource(Request, frozen=True, kw_only=True):
    """The text of a workflow definition; the same may be sent as a body of type application/yaml."""

    source: Annotated[str, Meta(min_length=1, max_length=SOURCE_LENGTH_MAX, description="YAML, up to 256 KiB")]


Number = Annotated[int, Meta(ge=1, le=2**31 - 1, description="A published version's number")]


class SetDefault(Request, frozen=True, kw_only=True):
    """Pin the version that a start without a number runs; without `version` it follows the highest one again."""

    reason: Reason
    version: Number | None = None
    expected_revision: Revision | None = None


class ChangeVersion(Request, frozen=True, kw_only=True):
    """Give a version another state; with `expected_revision` only if the workflow has not changed since it was read."""

    reason: Reason
    expected_revision: Revision | None = None


class StartInstance(Request, frozen=True, kw_only=True):
    """Start an instance of a published workflow."""

    workflow: Annotated[str, Meta(min_length=1, max_length=128, description="The workflow's name")]
    version: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Default: the workflow's default version")] | None = (
        None
    )
    input: Annotated[Raw, raw_schema("What the definition's input schema asks for; default {}")] | UnsetType = UNSET
    business_key: BusinessKey | None = None
    labels: Labels | None = None
    traceparent: Traceparent | None = None
    signal: FirstSignal | None = None
    pause_at: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=64)]],
            Meta(max_length=100, description="Ids of steps before which the instance pauses"),
        ]
        | None
    ) = None
