"""tau2-bench from its own repository: retail, airline and telecom, with the package's tools, tasks,
data and grading.

The tools run unchanged. Retail and airline work on views of one shared database, telecom on a copy
of its small one. The package's agents, users and judge are not used, and nothing that needs litellm
is imported. The package is imported when a domain is loaded.
"""

from typing import Any

from rollq.env import Action
from rollq.env.customer_service import Case, ConversationDomain
from rollq.errors import JobFailure
from rollq_integrations.tau.backend import user_wishes
from rollq_integrations.tau.scripted_tasks import scripted_case
from rollq_integrations.tau.tau2.database import Tau2Backend
from rollq_integrations.tau.tau2.package import digest, imported, version
from rollq_integrations.tau.tau2.telecom import TelecomBackend

VARIANTS = ("retail", "airline", "telecom")


def load(variant: str | None) -> ConversationDomain:
    """The entry point. Raises JobFailure for another variant, and without the package or
    its data.
    """
    if variant not in VARIANTS:
        raise JobFailure(
            f"environment 'tau2' has the variants {', '.join(VARIANTS)}, not {variant!r}"
        )
    package = version()
    domain, data = imported(variant)
    environment = domain.get_environment()
    backend = TelecomBackend(environment) if variant == "telecom" else Tau2Backend(environment)
    tasks = {task.id: task for task in domain.get_tasks(None)}
    cases = {
        id: _case(variant, backend, number, task) for number, (id, task) in enumerate(tasks.items())
    }
    splits = {
        split: [case for id, case in cases.items() if id in ids]
        for split, ids in ((split, set(ids)) for split, ids in domain.get_tasks_split().items())
    }
    return ConversationDomain(f"tau2:{variant}", f"{package} data {digest(data)}", backend, splits)


def _case(variant: str, backend: Any, number: int, task: Any) -> Case:
    criteria = task.evaluation_criteria
    scenario = task.user_scenario.instructions
    basis = {part.value for part in criteria.reward_basis}
    if not _is_supported(variant, task, basis):
        raise JobFailure(
            f"tau2:{variant} task {task.id} starts or is graded in a way that is not supported"
        )
    case = scripted_case(
        task.id,
        task.model_dump(mode="json"),
        instruction=str(task.user_scenario),
        wishes=user_wishes(scenario),
        calls=[Action(action.name, action.arguments) for action in criteria.actions or ()],
        outputs=(criteria.communicate_info or ()) if "COMMUNICATE" in basis else (),
        assertions=(criteria.nl_assertions or ()) if "NL_ASSERTION" in basis else (),
        closing_tools=frozenset(),
    )
    return backend.with_phone(case, task, number) if isinstance(backend, TelecomBackend) else case


def _is_supported(variant: str, task: Any, basis: set[str]) -> bool:
    """True if the backend starts and grades the task as the package does."""
    if variant == "telecom":
        start = task.initial_state
        return basis <= {"ENV_ASSERTION", "ACTION"} and not (start and start.message_history)
    actions = task.evaluation_criteria.actions or ()
    alone = task.initial_state is None and all(
        action.requestor == "assistant" for action in actions
    )
    return alone and {"DB"} <= basis <= {"DB", "COMMUNICATE", "NL_ASSERTION"}
