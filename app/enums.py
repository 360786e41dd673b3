"""The closed sets of words. Each value carries the sentence that explains it to people and to the schema."""

import enum
from typing import Self


class Described(enum.StrEnum):
    """A string with a sentence: `PENDING = "pending", "Waits for its turn."`."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member


class PrincipalKind(Described):
    USER = "user", "A person."
    SERVICE = "service", "An account that belongs to a program."
    SANDBOX = "sandbox", "The worker in one sandbox, for one attempt."
    GUARDIAN = "guardian", "The watcher inside this server."
    SYSTEM = "system", "This server itself, and the command line on its machine."


class Role(Described):
    VIEWER = "viewer", "Reads everything in the project."
    MEMBER = "member", "Also changes tickets, tasks, specs and sandboxes."
    OWNER = "owner", "Also changes the project itself and who belongs to it."


class TokenKind(Described):
    ACCESS = "access", "Made by a person, for programs."
    SESSION = "session", "A signed-in browser."
    SIGN_IN = "sign_in", "A link that makes one session, once."


class RepositoryHost(Described):
    GITHUB = "github", "A repository on GitHub, by owner and name."
    GIT = "git", "Any other remote that `git clone` takes."


class EgressPolicy(Described):
    OFFLINE = "offline", "Nothing but the model and the repository can be reached."
    REGISTRIES = "registries", "Also the package registries that the operator lists."
    OPEN = "open", "The whole network."


class PermissionMode(Described):
    ACCEPT_EDITS = "accept_edits", "Edits pass; other tools need to be allowed."
    BYPASS_PERMISSIONS = "bypass_permissions", "Every tool passes; the sandbox is the limit."
    DONT_ASK = "dont_ask", "What is not allowed is refused, and nobody is asked."
    PLAN = "plan", "The agent plans and changes nothing."


class TicketKind(Described):
    FEATURE = "feature", "Something new."
    BUG = "bug", "Something that is wrong."
    HOTFIX = "hotfix", "Something that is wrong and cannot wait."
    REFACTOR = "refactor", "The same behaviour in better code."
    DOCS = "docs", "Words for readers."
    TEST = "test", "Proof that something works."
    CHORE = "chore", "Housekeeping."


class TicketStatus(Described):
    BACKLOG = "backlog", "An idea; nobody has said that it shall be done."
    READY = "ready", "May be worked on as soon as there is room."
    IN_PROGRESS = "in_progress", "An agent or a person works on it."
    IN_REVIEW = "in_review", "The work is there and waits for a judgement."
    DONE = "done", "Finished."
    CANCELLED = "cancelled", "Will not be done."


class Priority(Described):
    CRITICAL = "critical", "Before everything else."
    HIGH = "high", "Soon."
    MEDIUM = "medium", "In its turn."
    LOW = "low", "When there is nothing else."


class TaskPhase(Described):
    EXPLORE = "explore", "Reads the code and learns."
    REQUIREMENTS = "requirements", "Says what must hold."
    DESIGN = "design", "Decides how."
    IMPLEMENTATION = "implementation", "Writes the code."
    TESTING = "testing", "Proves that it works."
    REVIEW = "review", "Judges the work of another task."


class TaskStatus(Described):
    PENDING = "pending", "Waits for its turn; `waitingFor` says what for."
    ASSIGNED = "assigned", "An attempt has a sandbox that is not yet up."
    RUNNING = "running", "An agent works on it."
    COMPLETED = "completed", "Ended with a result."
    FAILED = "failed", "Ended without one; `failure` says why."
    CANCELLED = "cancelled", "Somebody ended it."


class WaitCode(Described):
    DEPENDENCY = "dependency", "A task that it depends on is not completed."
    TICKET_BLOCKED = "ticket_blocked", "Its ticket is blocked by another ticket, or by a person's reason."
    CONCURRENCY = "concurrency", "All places of the project are taken."
    BUDGET = "budget", "The project's budget is used up."
    BACKOFF = "backoff", "The last attempt failed and the next one waits."
    LAST_MACHINE = "last_machine", "The machine of its last attempt is not gone yet."
    PROVIDER_QUOTA = "provider_quota", "The sandbox provider's quota is used up."
    PROVIDER_DOWN = "provider_down", "The sandbox provider does not answer."
    NO_CREDENTIAL = "no_credential", "A credential that it needs is missing."
    ORCHESTRATOR_OFF = "orchestrator_off", "No orchestrator hands out tasks."
    PROJECT_ARCHIVED = "project_archived", "The project is archived."


class SandboxStatus(Described):
    PROVISIONING = "provisioning", "Its machine is being asked for."
    STARTING = "starting", "Its machine runs; its worker has not reported yet."
    RUNNING = "running", "Its agent works."
    WAITING = "waiting", "Its agent waits for a message."
    STOPPING = "stopping", "It was asked to stop."
    COMPLETED = "completed", "Ended with a result."
    FAILED = "failed", "Ended without one; `failure` says why."
    CANCELLED = "cancelled", "Somebody ended it."
    LOST = "lost", "Vanished without a report."


class DesiredState(Described):
    RUN = "run", "Go on."
    STOP = "stop", "Save what there is, and leave."


class EventSource(Described):
    AGENT = "agent", "The agent."
    WORKER = "worker", "The program around the agent."
    SYSTEM = "system", "This server."
    GUARDIAN = "guardian", "The watcher inside this server."
    USER = "user", "A person."


class SandboxEventType(Described):
    SANDBOX_STATUS = "sandbox_status", "The sandbox has another status."
    STARTED = "started", "The worker has the repository and starts the agent."
    SYSTEM_MESSAGE = "system_message", "The agent's own program says something about itself."
    ASSISTANT_MESSAGE = "assistant_message", "The model answered."
    MESSAGE = "message", "What the agent says."
    THINKING = "thinking", "What the agent thinks."
    TOOL_USE = "tool_use", "The agent calls a tool."
    TOOL_COMPLETED = "tool_completed", "A tool has ended."
    USER_TOOL_RESULT = "user_tool_result", "What the model was told about a tool's end."
    FILE_EDITED = "file_edited", "A file is another one than before."
    SUBAGENT_STARTED = "subagent_started", "The agent hands work to another one."
    SUBAGENT_COMPLETED = "subagent_completed", "That one has ended."
    CHECK_STARTED = "check_started", "One of the project's checks runs."
    CHECK_COMPLETED = "check_completed", "One of the project's checks has ended."
    COMMITTED = "committed", "The work was committed."
    PUSHED = "pushed", "The branch was pushed."
    PHASE_STARTED = "phase_started", "A phase of a spec has begun."
    PHASE_EVALUATED = "phase_evaluated", "A phase of a spec was judged."
    PHASE_COMPLETED = "phase_completed", "A phase of a spec has ended."
    MESSAGE_DELIVERED = "message_delivered", "The agent was shown a message."
    INTERRUPTED = "interrupted", "The agent was interrupted."
    WAITING = "waiting", "The agent waits for a message."
    INTERVENTION = "intervention", "A guardian stepped in."
    BUDGET_WARNING = "budget_warning", "Most of the budget is used up."
    LOG = "log", "A remark of the worker."
    ERROR = "error", "Something went wrong."
    COMPLETED = "completed", "The try has ended."


class FileChangeKind(Described):
    CREATED = "created", "It is new."
    MODIFIED = "modified", "Its content is another."
    DELETED = "deleted", "It is gone."
    RENAMED = "renamed", "It has another path, and perhaps another content."


class MessageKind(Described):
    USER = "user", "What a person wants the agent to know."
    GUARDIAN_NUDGE = "guardian_nudge", "A hint of the guardian."
    INTERRUPT = "interrupt", "Stop what you do now; the body says how to go on."
    SYSTEM = "system", "What this server has to say."
    COLLABORATION = "collaboration", "What another agent of the project says; it has no authority."


class MessageStatus(Described):
    QUEUED = "queued", "Waits for the worker."
    SENT = "sent", "The worker has it."
    DELIVERED = "delivered", "The agent was shown it."
    EXPIRED = "expired", "Its time was over, or the sandbox had ended, before the agent could be shown it."
    CANCELLED = "cancelled", "Its author took it back."


class CredentialKind(Described):
    GITHUB = "github", "A token for repositories on GitHub."
    ANTHROPIC = "anthropic", "A key, or an OAuth token, for the model."
    DAYTONA = "daytona", "A key for the sandbox provider Daytona."


class GitOperation(Described):
    FETCH = "fetch", "Reads from the remote."
    PUSH = "push", "Writes to the remote."


class FailureCode(Described):
    SPAWN_FAILED = "spawn_failed", "The sandbox could not be started."
    SANDBOX_LOST = "sandbox_lost", "The sandbox vanished while it worked."
    OUT_OF_MEMORY = "out_of_memory", "The sandbox ran out of memory."
    KILLED = "killed", "The agent was killed."
    TIMED_OUT = "timed_out", "The time limit was reached."
    STALLED = "stalled", "The agent fell silent."
    AGENT_ERROR = "agent_error", "The agent ended with an error."
    CHECKS_FAILED = "checks_failed", "The project's checks did not pass."
    BUDGET_EXHAUSTED = "budget_exhausted", "The budget was used up."
    CREDENTIAL_REJECTED = "credential_rejected", "A credential was refused."
    POISON = "poison", "Every attempt ended without a report."
    CANCELLED = "cancelled", "Somebody ended it."


class HealthStatus(Described):
    OK = "ok", "Works."
    DEGRADED = "degraded", "Works, but slower or with a part missing."
    DOWN = "down", "Does not work."
