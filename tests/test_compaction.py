"""Compaction: less is sent, all is kept; calls and results stay together; the task is never lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import Client, ConfigurationError, HookError, SqliteStore, Tool
from toolnexus.compaction import compactor, estimate_tokens
from toolnexus.testing import ModelServer
from toolnexus.wire.transcript import prepare


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


def call(n: int, output: str = "x") -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": json.dumps({"n": n})}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"c{n}", "content": output},
    ]


def long_talk(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "THE TASK"}]
    for n in range(turns):
        messages += call(n, f"result {n} " + "word " * 40)
    return messages


def balanced(messages: list[dict[str, Any]]) -> bool:
    """Every result stands right behind its call, and every call has one."""
    return prepare(messages, None).repairs == []


def test_what_fits_is_left_alone() -> None:
    """Below the limit nothing changes."""
    hook = compactor(max_tokens=10_000, summarize=lambda m: "never")
    assert hook.before_llm({"messages": long_talk(3)}) is None


def test_old_results_are_cut_first() -> None:
    """Long results of old calls are cut in the middle before anything is summarised; the last stay whole."""
    messages = [{"role": "user", "content": "t"}, *call(1, "A" * 9000), *call(2, "B" * 2500)]
    hook = compactor(max_tokens=1800, summarize=lambda m: pytest.fail("not needed"), prune_over=1000)
    sent = hook.before_llm({"messages": messages})["messages"]  # type: ignore[index]
    assert "8000 characters left out" in sent[2]["content"]
    assert len(sent[2]["content"]) < 1100
    assert sent[4]["content"] == "B" * 2500
    assert messages[2]["content"] == "A" * 9000


def test_a_single_prompt_with_many_turns_keeps_its_task() -> None:
    """The one user message is never summarised away, and the newest turns stay as they are."""
    seen: list[Any] = []

    def summarize(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return "SUMMARY"

    messages = long_talk(30)
    hook = compactor(max_tokens=900, summarize=summarize)
    change = hook.before_llm({"messages": messages})
    assert change is not None
    sent = change["messages"]
    assert any(m["content"] == "THE TASK" for m in sent)
    assert sent[-1] == messages[-1]
    assert balanced(sent)
    assert estimate_tokens(sent) <= 900
    assert seen[0][0]["content"] == "THE TASK"
    assert "SUMMARY" in sent[0]["content"]


@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["user", "call", "calls"]), st.integers(1, 400)), min_size=1, max_size=30
    ),
    limit=st.integers(60, 2000),
)
def test_calls_and_results_are_never_parted(turns: list[tuple[str, int]], limit: int) -> None:
    """What is sent is balanced, begins with the task, and ends as the transcript does."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "THE TASK"}]
    for n, (kind, size) in enumerate(turns):
        if kind == "user":
            messages += [{"role": "assistant", "content": "a" * size}, {"role": "user", "content": f"u{n}"}]
        elif kind == "call":
            messages += call(n, "r" * size)
        else:
            two = [call(100 + 2 * n, "r" * size), call(101 + 2 * n, "s" * size)]
            merged = {**two[0][0], "tool_calls": [*two[0][0]["tool_calls"], *two[1][0]["tool_calls"]]}
            messages += [merged, two[0][1], two[1][1]]
    change = compactor(max_tokens=limit, summarize=lambda m: "S").before_llm({"messages": list(messages)})
    sent = messages if change is None else change["messages"]
    assert balanced(sent)
    assert any(m["content"] == "THE TASK" for m in sent)
    prompts = [m for m in messages if m["role"] == "user"]
    assert prompts[-1] in sent
    assert sent[-1]["role"] == messages[-1]["role"]


def test_the_stored_history_stays_whole_and_the_summary_is_used_again(
    server: ModelServer, tmp_path: Any
) -> None:
    """One summary serves many turns and the next run; the store has every message, with a marker."""
    asked: list[int] = []

    def summarize(messages: list[dict[str, Any]]) -> str:
        asked.append(len(messages))
        return "they counted"

    tool = Tool("f", execute=lambda a, c: "word " * 60)
    with SqliteStore(tmp_path / "c.db") as store:
        client = Client(
            base_url=server.base_url, style=server.style, model="m", api_key="k", store=store, max_turns=50,
            hooks=compactor(max_tokens=1200, keep_tail=300, summarize=summarize),
        )  # fmt: skip
        for n in range(14):
            server.call("f", {"n": n}, id=f"call{n:05d}")
        server.say("done")
        result = client.run("THE TASK", [tool], id="c")
        assert result.text == "done"
        assert len(result.messages) == 1 + 2 * 14 + 1
        assert 1 <= len(asked) <= 4
        before = len(asked)
        server.say("yes")
        client.run("still there?", [tool], id="c")
        assert len(asked) == before
        last = str(server.requests[-1].json)
        assert "they counted" in last
        assert "THE TASK" in last
        assert "still there?" in last
        stored = store.get("c") or []
        assert len(stored) == 1 + 2 * 14 + 1 + 2
        assert sum("compacted" in (m.get("toolnexus") or {}) for m in stored) == before
        client.close()


def test_a_client_can_summarise(server: ModelServer) -> None:
    """Summarize may be a client; it is asked with the old messages."""
    with ModelServer(style=server.style) as other:
        other.say("short story")
        options = {"style": server.style, "model": "m", "api_key": "k"}
        small = Client(base_url=other.base_url, **options)
        client = Client(base_url=server.base_url, hooks=compactor(max_tokens=400, summarize=small), **options)
        server.say("ok")
        client.run("now", history=long_talk(10))
        assert "result 0" in str(other.requests[0].json)
        assert "short story" in str(server.requests[0].json)
        small.close()
        client.close()


def test_a_summary_that_fails_ends_the_run_with_its_name(server: ModelServer) -> None:
    """The error names the hook; nothing is sent."""
    hook = compactor(max_tokens=200, summarize=lambda m: 1 / 0)
    client = Client(base_url=server.base_url, style=server.style, model="m", api_key="k", hooks=hook)
    with client, pytest.raises(HookError, match=r"Compactor.before_llm.*ZeroDivisionError"):
        client.run("go", history=long_talk(10))
    assert server.requests == []


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"keep_tail": 0}, {"keep_tail": 999}, {"summarize": 3}])
def test_wrong_options_are_told(wrong: dict[str, Any]) -> None:
    """A wrong option is an error at once."""
    with pytest.raises(ConfigurationError):
        compactor(**{"max_tokens": 100, "summarize": lambda m: "", **wrong})
