"""Orbit: the foundation of both layers, and the public face (SDK and CLI).

User code imports this package only: `orbit.Client`, `orbit.Worker` and their types. The names are loaded when they are
first used, so that `import orbit` costs nothing and never pulls in a database driver or gevent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from orbit.sdk.batch_models import Batch, CreateBatch, InstanceSelection, TaskSelection
    from orbit.sdk.client import Client
    from orbit.sdk.context import CancelReason, TaskContext
    from orbit.sdk.decisions import LateResult, RescheduleTask, RetryTask, ReviewTask, Verdict
    from orbit.sdk.errors import (
        APIError,
        ConfigurationError,
        ConnectionFailed,
        OrbitSDKError,
        OutcomeUnknown,
        WorkerRefused,
    )
    from orbit.sdk.keys import ConcurrencyKey, ConfigureKeyRequest
    from orbit.sdk.models import (
        Application,
        ApplicationResult,
        ConfigureApplicationRequest,
        ConfigureQueueRequest,
        CreateQueueRequest,
        Instance,
        InstanceResult,
        Queue,
        QueueResult,
        StartInstance,
        SubmitTask,
        Task,
        TaskResult,
    )
    from orbit.sdk.namespaces import ConfigureNamespaceRequest, Namespace
    from orbit.sdk.outcomes import Cancelled, Defer, NeedsHuman, NonRetryable, Retryable, UnknownOutcome
    from orbit.sdk.schedule_models import (
        ConfigureSchedule,
        CreateSchedule,
        Firing,
        MisfireRule,
        OverlapRule,
        PreviewSchedule,
        Schedule,
        ScheduleConfiguration,
        ScheduledTask,
        ScheduledWorkflow,
        ScheduleResult,
    )
    from orbit.sdk.settings import Connection
    from orbit.sdk.signal_models import SendSignal
    from orbit.sdk.subscription_models import ConfigureSubscription, CreateSubscription, Delivery, Event, Subscription
    from orbit.sdk.type_models import OutputReference, PutTaskType, Retry, TaskType, TypeDefaults
    from orbit.sdk.worker import Worker

# Public name → the module that defines it; the imports above tell type checkers the same.
_PUBLIC: dict[str, str] = {
    "APIError": "orbit.sdk.errors",
    "Application": "orbit.sdk.models",
    "ApplicationResult": "orbit.sdk.models",
    "Batch": "orbit.sdk.batch_models",
    "CancelReason": "orbit.sdk.context",
    "Cancelled": "orbit.sdk.outcomes",
    "Client": "orbit.sdk.client",
    "ConcurrencyKey": "orbit.sdk.keys",
    "ConfigurationError": "orbit.sdk.errors",
    "ConfigureApplicationRequest": "orbit.sdk.models",
    "ConfigureKeyRequest": "orbit.sdk.keys",
    "ConfigureNamespaceRequest": "orbit.sdk.namespaces",
    "ConfigureQueueRequest": "orbit.sdk.models",
    "ConfigureSchedule": "orbit.sdk.schedule_models",
    "ConfigureSubscription": "orbit.sdk.subscription_models",
    "Connection": "orbit.sdk.settings",
    "ConnectionFailed": "orbit.sdk.errors",
    "CreateBatch": "orbit.sdk.batch_models",
    "CreateQueueRequest": "orbit.sdk.models",
    "CreateSchedule": "orbit.sdk.schedule_models",
    "CreateSubscription": "orbit.sdk.subscription_models",
    "Defer": "orbit.sdk.outcomes",
    "Delivery": "orbit.sdk.subscription_models",
    "Event": "orbit.sdk.subscription_models",
    "Firing": "orbit.sdk.schedule_models",
    "Instance": "orbit.sdk.models",
    "InstanceResult": "orbit.sdk.models",
    "InstanceSelection": "orbit.sdk.batch_models",
    "LateResult": "orbit.sdk.decisions",
    "MisfireRule": "orbit.sdk.schedule_models",
    "Namespace": "orbit.sdk.namespaces",
    "NeedsHuman": "orbit.sdk.outcomes",
    "NonRetryable": "orbit.sdk.outcomes",
    "OrbitSDKError": "orbit.sdk.errors",
    "OutcomeUnknown": "orbit.sdk.errors",
    "OutputReference": "orbit.sdk.type_models",
    "OverlapRule": "orbit.sdk.schedule_models",
    "PreviewSchedule": "orbit.sdk.schedule_models",
    "PutTaskType": "orbit.sdk.type_models",
    "Queue": "orbit.sdk.models",
    "QueueResult": "orbit.sdk.models",
    "RescheduleTask": "orbit.sdk.decisions",
    "Retry": "orbit.sdk.type_models",
    "RetryTask": "orbit.sdk.decisions",
    "Retryable": "orbit.sdk.outcomes",
    "ReviewTask": "orbit.sdk.decisions",
    "Schedule": "orbit.sdk.schedule_models",
    "ScheduleConfiguration": "orbit.sdk.schedule_models",
    "ScheduleResult": "orbit.sdk.schedule_models",
    "ScheduledTask": "orbit.sdk.schedule_models",
    "ScheduledWorkflow": "orbit.sdk.schedule_models",
    "SendSignal": "orbit.sdk.signal_models",
    "StartInstance": "orbit.sdk.models",
    "SubmitTask": "orbit.sdk.models",
    "Subscription": "orbit.sdk.subscription_models",
    "Task": "orbit.sdk.models",
    "TaskContext": "orbit.sdk.context",
    "TaskResult": "orbit.sdk.models",
    "TaskSelection": "orbit.sdk.batch_models",
    "TaskType": "orbit.sdk.type_models",
    "TypeDefaults": "orbit.sdk.type_models",
    "UnknownOutcome": "orbit.sdk.outcomes",
    "Verdict": "orbit.sdk.decisions",
    "Worker": "orbit.sdk.worker",
    "WorkerRefused": "orbit.sdk.errors",
}

__all__ = [
    "APIError",
    "Application",
    "ApplicationResult",
    "Batch",
    "CancelReason",
    "Cancelled",
    "Client",
    "ConcurrencyKey",
    "ConfigurationError",
    "ConfigureApplicationRequest",
    "ConfigureKeyRequest",
    "ConfigureNamespaceRequest",
    "ConfigureQueueRequest",
    "ConfigureSchedule",
    "ConfigureSubscription",
    "Connection",
    "ConnectionFailed",
    "CreateBatch",
    "CreateQueueRequest",
    "CreateSchedule",
    "CreateSubscription",
    "Defer",
    "Delivery",
    "Event",
    "Firing",
    "Instance",
    "InstanceResult",
    "InstanceSelection",
    "LateResult",
    "MisfireRule",
    "Namespace",
    "NeedsHuman",
    "NonRetryable",
    "OrbitSDKError",
    "OutcomeUnknown",
    "OutputReference",
    "OverlapRule",
    "PreviewSchedule",
    "PutTaskType",
    "Queue",
    "QueueResult",
    "RescheduleTask",
    "Retry",
    "RetryTask",
    "Retryable",
    "ReviewTask",
    "Schedule",
    "ScheduleConfiguration",
    "ScheduleResult",
    "ScheduledTask",
    "ScheduledWorkflow",
    "SendSignal",
    "StartInstance",
    "SubmitTask",
    "Subscription",
    "Task",
    "TaskContext",
    "TaskResult",
    "TaskSelection",
    "TaskType",
    "TypeDefaults",
    "UnknownOutcome",
    "Verdict",
    "Worker",
    "WorkerRefused",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use (PEP 562)."""
    module = _PUBLIC.get(name)
    if module is None:
        message = f"module 'orbit' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(module), name)
