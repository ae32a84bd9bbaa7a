"""
The names of OpenTelemetry's conventions for generative AI, as of semantic conventions 1.41.

The conventions are still in development and have moved to a repository of their own; when a name
changes, it changes here.
"""

from __future__ import annotations

# -- operations ------------------------------------------------------------------------------

CHAT = "chat"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"

# -- attributes ------------------------------------------------------------------------------

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"

REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
REQUEST_STOP_SEQUENCES = "gen_ai.request.stop_sequences"

RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"

USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_CREATION = "gen_ai.usage.cache_creation.input_tokens"
USAGE_REASONING = "gen_ai.usage.reasoning.output_tokens"

TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_DESCRIPTION = "gen_ai.tool.description"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT = "gen_ai.tool.call.result"

INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"

TOKEN_TYPE = "gen_ai.token.type"

ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_STATUS = "http.response.status_code"

# -- attributes of our own, for what the conventions have no word for ------------------------

RUN_ID = "toolnexus.run.id"
RUN_STATUS = "toolnexus.run.status"
RUN_LIMIT = "toolnexus.run.limit"
TURN = "toolnexus.turn"
ATTEMPT = "toolnexus.attempt"
TOOL_SOURCE = "toolnexus.tool.source"
TOOL_PENDING = "toolnexus.tool.pending"

# -- metrics ---------------------------------------------------------------------------------

TOKEN_USAGE = "gen_ai.client.token.usage"
OPERATION_DURATION = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TOOL_DURATION = "gen_ai.execute_tool.duration"
AGENT_DURATION = "gen_ai.invoke_agent.duration"

#: The bounds that the conventions give for the histograms of tokens and of seconds.
TOKEN_BOUNDS = tuple(4.0**power for power in range(14))
SECOND_BOUNDS = tuple(0.01 * 2**power for power in range(14))

#: Where the schema of these names is described.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"

#: The environment variable that turns on the recording of prompts, answers, arguments and results.
CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

#: Its values that do.
CAPTURING = ("true", "1", "span_only", "span_and_event")

#: How the conventions call the providers of known hosts.
PROVIDERS = {
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
    "anthropic.com": "anthropic",
    "cohere.ai": "cohere",
    "cohere.com": "cohere",
    "deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "groq.com": "groq",
    "inference.ai.azure.com": "azure.ai.inference",
    "mistral.ai": "mistral_ai",
    "openai.azure.com": "azure.ai.openai",
    "openai.com": "openai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}

#: And those of the styles, for all other hosts.
STYLES = {"anthropic": "anthropic", "gemini": "gcp.gen_ai"}


def provider(style: str, host: str | None) -> str:
    """
    Return the conventions' name of the provider.

    Args:
        style: The endpoint's dialect.
        host: The endpoint's host; None for a model in this process.

    >>> provider("openai", "api.groq.com"), provider("anthropic", "localhost"), provider("openai", None)
    ('groq', 'anthropic', 'in_process')
    """
    if host is None:
        return "in_process"
    known = (name for suffix, name in PROVIDERS.items() if host == suffix or host.endswith("." + suffix))
    return next(known, STYLES.get(style, "openai"))
