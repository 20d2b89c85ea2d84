"""Requests and answers of what operators do to instances."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from api.models.fields import BusinessKey, Count, HexId, Instant, Labels, Reason, Request, Revision, raw_schema
from api.models.recovery import Evidence, Statement


class CancelInstance(Request, frozen=True, kw_only=True):
    """End an instance as CANCELLED; with `expected_revision` only if nothing has happened since that was read.

    With `compensate` what its steps have done is undone first, where the definition says how.
    """

    reason: Reason
    expected_revision: Revision | None = None
    compensate: bool | None = None


class PauseInstance(Request, frozen=True, kw_only=True):
    """Let nothing of an instance begin any more."""

    reason: Reason
    expected_revision: Revision | None = None


class ResumeInstance(Request, frozen=True, kw_only=True):
    """Let a paused instance go on."""

    reason: Reason
    expected_revision: Revision | None = None


class RecoverInstance(Request, frozen=True, kw_only=True):
    """Decide about a failed step, a step under review, or without `step` about the held instance itself.

    COMPLETE may carry the output; a RETRY where an effect is possible needs a safety statement.
    """

    action: Literal["RETRY", "COMPLETE", "FAIL", "SKIP"]
    expected_revision: Revision
    evidence: Evidence
    reason: Reason
    step: Annotated[str, Meta(min_length=1, max_length=128, description="Id of the step")] | None = None
    output: Annotated[Raw, raw_schema("The output vouched for, up to 64 KiB; default null")] | UnsetType = UNSET
    safety_statement: Statement | None = None
    dry_run: bool | None = None


class ForkInstance(Request, frozen=True, kw_only=True):
    """Start a new instance that copies what lies before a step, and runs that step and what is behind it again.

    Where a step whose effect happened or may have runs again, it needs a safety statement.
    """

    step: Annotated[str, Meta(min_length=1, max_length=128, description="Id of the step to begin with")]
    reason: Reason
    expected_revision: Revision | None = None
    version: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Default: the instance's own version")] | None = None
    business_key: BusinessKey | None = None
    labels: Labels | None = None
    safety_statement: Statement | None = None
    dry_run: bool | None = None


class MigrateInstance(Request, frozen=True, kw_only=True):
    """Let a running instance go on with another version of its workflow, if it has begun nothing that differs."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1, description="The version to go on with")]
    reason: Reason
    expected_revision: Revision | None = None
    dry_run: bool | None = None


class ControlledInstance(Struct, kw_only=True):
    """An instance after a command."""

    id: HexId
    state: str
    ending_as: str | None
    compensation: str | None
    control: str
    revision: Count


class RecoveredStep(Struct, kw_only=True):
    """A step before or after a decision."""

    id: str
    state: str
    round: int
    task_id: HexId | None
    error: dict[str, Any] | None


class RecoveryLook(Struct, kw_only=True):
    """What a decision may change: the instance's state and error, and the step."""

    state: str
    ending_as: str | None
    compensation: str | None
    control: str
    revision: Count
    error: dict[str, Any] | None
    step: RecoveredStep | None


class RecoveryResult(Struct, kw_only=True):
    """The receipt of a decision, or with `dry_run` what it would do."""

    deduplicated: bool
    dry_run: bool
    instance: ControlledInstance
    before: RecoveryLook
    after: RecoveryLook


class InstanceRecovery(Struct, kw_only=True):
    """A decision that was made; `superseded` is what the step's task reported afterwards, kept without effect."""

    revision: Count
    action: str
    step: str | None
    round: int
    task_id: HexId | None
    safety_statement: str | None
    evidence: Any
    evidence_sha256: str
    reason: str
    actor: str
    at: Instant
    superseded: list[dict[str, Any]]


class ForkResult(Struct, kw_only=True):
    """The receipt of a fork, or with `dry_run` what it would be: the copied steps and those that run again.

    `instance` is the new one as it was accepted; null for a dry run.
    """

    deduplicated: bool
    dry_run: bool
    forked_from: HexId
    version: int
    step: str
    copied: list[str]
    again: list[str]
    instance: dict[str, Any] | None
    warnings: list[dict[str, Any]] | UnsetType = UNSET


class MigrationResult(Struct, kw_only=True):
    """The receipt of a migration, or with `dry_run` that it could be; `verdict` is the diff's for all instances."""

    deduplicated: bool
    dry_run: bool
    from_version: int
    to_version: int
    verdict: str
    instance: ControlledInstance


class InstanceControlResult(Struct, kw_only=True):
    """The receipt of a command."""

    deduplicated: bool
    instance: ControlledInstance
