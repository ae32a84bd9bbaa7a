"""The toolkit: every source of tools in one place."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp_servers import eventually, raw, sdk
from toolnexus import (
    Answer,
    CancelScope,
    ConfigurationError,
    Context,
    Request,
    RunCancelledError,
    Tool,
    Toolkit,
    ToolResult,
    create_toolkit,
    relay_tool,
    tool,
)
from toolnexus.suspension import pending_of
from toolnexus.tools.assembly import NameBook
from toolnexus.tools.builtins import BUILTIN_NAMES, builtin_tools
from toolnexus.tools.mcp import McpSource
from toolnexus.tools.skills import SkillDef, load_skills


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def named(name: str, output: str = "", **options: Any) -> Tool:
    """Return a tool of that name."""
    return Tool(name, execute=lambda args, ctx: output or name, **options)


def names(toolkit: Toolkit) -> list[str]:
    """Return the final names in order."""
    return [tool.name for tool in toolkit.tools]


LOOK = SkillDef("look", "Only look.", description="Looks.", allowed_tools=["read", "greet"])


# -- what is in it ---------------------------------------------------------------------------


def test_sources_stand_in_their_order(tmp_path: Path) -> None:
    """MCP servers, skills, built-ins, your own."""
    servers = {"s": raw(names=["echo"])}
    with Toolkit(
        [add], mcp_config=servers, skills=[LOOK], builtins=["grep", "read"], root=tmp_path
    ) as toolkit:
        assert names(toolkit) == ["s_echo", "skill", "read", "grep", "add"]
        assert [tool.source for tool in toolkit.tools] == ["mcp", "skill", "builtin", "builtin", "native"]
        assert len(toolkit) == 5
        assert "read" in toolkit
        assert repr(toolkit) == "<Toolkit: s_echo, skill, read, grep, add>"
        assert toolkit.get("add") is toolkit.tools[-1]
        assert toolkit.get("nope") is None


def test_nothing_is_there_unless_asked_for() -> None:
    """No built-in, no skill tool, no words for the prompt."""
    toolkit = Toolkit()
    assert (names(toolkit), toolkit.skills_prompt(), toolkit.mcp_status()) == ([], "", {})
    assert (toolkit.skills, repr(toolkit)) == (None, "<Toolkit: no tools>")
    assert (toolkit.to_openai(), toolkit.to_anthropic(), toolkit.to_gemini()) == ([], [], [])


def test_own_tools_may_be_given_in_every_form() -> None:
    """Functions, tools, lists of them, and a single one."""
    assert names(Toolkit([add, [named("x"), (named("y"),)]])) == ["add", "x", "y"]
    assert names(Toolkit(add)) == ["add"]
    assert names(create_toolkit(named("x"))) == ["x"]
    with pytest.raises(ConfigurationError, match="str"):
        Toolkit(["add"])


@pytest.mark.parametrize(
    "wrong",
    [
        Tool(5),  # type: ignore[arg-type]
        Tool("x", input_schema=[]),  # type: ignore[arg-type]
        Tool("x", execute="print"),  # type: ignore[arg-type]
        Tool("x", timeout=-1.0),
        Tool("x", max_output=-1),
        Toolkit(),
        None,
        {"name": "x"},
    ],
)
def test_what_can_be_no_tool_is_refused_at_once(wrong: Any) -> None:
    """When the toolkit is built or changed, not when the model calls it."""
    with pytest.raises(ConfigurationError):
        Toolkit([add, wrong])
    toolkit = Toolkit([add])
    with pytest.raises(ConfigurationError):
        toolkit.register(wrong)
    assert names(toolkit) == ["add"]


def test_own_tools_replace_built_ins(tmp_path: Path) -> None:
    """Only yours is there, at its own place, and what the built-in could do is gone."""
    toolkit = Toolkit([named("bash", "mine")], builtins=True, root=tmp_path)
    assert names(toolkit) == [*BUILTIN_NAMES[1:], "bash"]
    assert toolkit.execute("bash", {}).output == "mine"


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"tools": [add, named("add", source="http")]}, "a function of yours", "an HTTP tool of yours"),
        ({"tools": [named("skill")], "skills": [LOOK]}, "the skills", "a function of yours"),
        (
            {"tools": [named("s_echo")], "mcp_config": {"s": raw(names=["echo"])}},
            "'s'",
            "a function of yours",
        ),
        ({"tools": [named("a.b"), named("a.b", source="x")]}, "a function of yours", "the source 'x'"),
        (
            {"mcp_config": {"skill": raw(names=[]), "s": raw(names=["k"])}, "tools": [named("s_k")]},
            "'s'",
            "yours",
        ),
    ],
)
def test_a_name_twice_names_both_sources(options: dict[str, Any], first: str, second: str) -> None:
    """And what to do about it."""
    with pytest.raises(ConfigurationError, match=r"two tools are named .*: one from") as caught:
        Toolkit(**options)
    message = str(caught.value)
    assert message.index(first) < message.index(second)
    assert 'on_duplicate="first"' in message


def test_mcp_11_a_function_and_two_servers_share_a_name() -> None:
    """All three are there, each under a name of its own, and each call goes where it belongs."""
    servers = {"a": raw(names=["echo"]), "b": raw(names=["echo"])}
    with Toolkit([named("echo", "mine")], mcp_config=servers) as toolkit:
        assert names(toolkit) == ["a_echo", "b_echo", "echo"]
        assert toolkit.execute("echo").output == "mine"
        assert toolkit.execute("b_echo", {"text": "b"}).output == "b"


def test_duplicates_may_be_settled() -> None:
    """The first one stays, or the last one, at its own place."""
    pair = [named("x", "one"), named("y"), named("x", "two")]
    first, last = Toolkit(pair, on_duplicate="first"), Toolkit(pair, on_duplicate="last")
    assert (names(first), first.execute("x").output) == (["x", "y"], "one")
    assert (names(last), last.execute("x").output) == (["y", "x"], "two")


# -- names -----------------------------------------------------------------------------------


def test_names_are_made_valid_and_distinct() -> None:
    """Names that a provider would refuse are changed; a tool whose name is right keeps it."""
    odd = ["a.b", "a/b", "a_b", "x" * 90, "---", "2nd", "größe"]
    toolkit = Toolkit([named(name) for name in odd])
    got = names(toolkit)
    assert len(set(got)) == len(odd)
    assert got[2] == "a_b"
    assert got[4:6] == ["_---", "_2nd"]
    assert [toolkit.execute(name).output for name in got] == odd
    assert names(Toolkit([named(name) for name in odd])) == got


@given(st.lists(st.text(max_size=80) | st.sampled_from(["a.b", "a/b", "a_b", "_a_b"]), unique=True))
def test_any_names_become_names_for_every_provider(texts: list[str]) -> None:
    """Charset, length, first character; no two alike; the same again."""
    book = NameBook()
    tools = [named(text or "?") for text in dict.fromkeys(text or "?" for text in texts)]
    got = [name for name, _ in book.named(tools)]
    assert len(set(got)) == len(got)
    for name in got:
        assert name.isascii()
        assert len(name) <= 64
        assert name[0].isalpha() or name[0] == "_"
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert [name for name, _ in book.named(tools)] == got


# -- allow and deny --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({"allow": ["read", "add"]}, ["read", "add"]),
        ({"allow": ["builtin:*"]}, ["read", "write", "grep"]),
        ({"allow": ["builtin:*"], "deny": ["write"]}, ["read", "grep"]),
        ({"deny": ["mcp:*", "skill"]}, ["read", "write", "grep", "add", "a_b"]),
        ({"deny": ["*"]}, []),
        ({"allow": ["s_*"]}, ["s_echo"]),
        ({"allow": ["a_b"]}, ["a_b"]),
        ({"allow": ["a.b"]}, []),
        ({"allow": []}, []),
        ({"deny": ["builtin:add"]}, ["s_echo", "skill", "read", "write", "grep", "add", "a_b"]),
    ],
)
def test_allow_and_deny_go_by_final_name_and_source(
    rules: dict[str, Any], left: list[str], tmp_path: Path
) -> None:
    """Deny wins; what is not offered cannot be executed either."""
    with Toolkit(
        [add, named("a.b")],
        mcp_config={"s": raw(names=["echo"])},
        skills=[LOOK],
        builtins=["read", "write", "grep"],
        root=tmp_path,
        **rules,
    ) as toolkit:
        assert names(toolkit) == left
        for name in {"s_echo", "read", "add"} - set(left):
            assert toolkit.execute(name).output.startswith(f"Unknown tool: {name}. Available tools: ")


def test_a_denied_tool_may_share_its_name() -> None:
    """What is not offered is no duplicate."""
    assert names(Toolkit([named("x"), named("x", source="http")], deny=["http:x"])) == ["x"]


def test_a_name_that_denies_nothing_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt name must not look as if it denied something; patterns may name nothing."""
    Toolkit([add], deny=["bsah", "native:ad", "mcp:*"], allow=["add", "addd"])
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "deny names 'bsah'" in caplog.text
    assert "deny names 'native:ad'" in caplog.text
    assert "allow names 'addd'" in caplog.text


# -- changing it -----------------------------------------------------------------------------


def test_tools_come_and_go() -> None:
    """Each change has a new revision; nothing changed, the same one."""
    toolkit = Toolkit([add])
    before = toolkit.revision
    assert toolkit.register(named("x"), [named("y")]) is toolkit
    assert names(toolkit) == ["add", "x", "y"]
    assert toolkit.revision == toolkit.revision != before
    assert toolkit.unregister("x")
    assert not toolkit.unregister("x")
    assert names(toolkit) == ["add", "y"]


def test_registering_a_taken_name_adds_nothing() -> None:
    """Not even the tools beside it."""
    toolkit = Toolkit([add])
    before = toolkit.revision
    with pytest.raises(ConfigurationError, match="two tools are named 'add'"):
        toolkit.register(named("x"), named("add"))
    assert (names(toolkit), toolkit.revision) == (["add"], before)


def test_unregister_takes_given_and_final_names_and_brings_built_ins_back(tmp_path: Path) -> None:
    """Only your own can go; what they replaced returns."""
    toolkit = Toolkit([named("a.b"), named("c.d"), named("read", "mine")], builtins=["read"], root=tmp_path)
    assert toolkit.unregister("a.b")
    assert toolkit.unregister("c_d")
    assert toolkit.unregister("read")
    assert not toolkit.unregister("read")
    assert names(toolkit) == ["read"]
    assert toolkit.execute("read", {"path": "nope"}).is_error


def test_a_toolkit_is_changed_and_used_by_many_threads() -> None:
    """No change is lost, no reader sees half of one."""
    toolkit = Toolkit([add])
    problems: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                problems.append(error)

        return threading.Thread(target=run)

    def change(prefix: str) -> None:
        for i in range(40):
            toolkit.register(named(f"{prefix}{i}"), named(f"{prefix}{i}_twin"))
            if i % 2:
                assert toolkit.unregister(f"{prefix}{i}")

    def use() -> None:
        for _ in range(200):
            seen = names(toolkit)
            assert "add" in seen
            twins = {n.removesuffix("_twin") for n in seen if n.endswith("_twin")}
            assert {n for n in seen if n != "add" and not n.endswith("_twin")} <= twins
            assert toolkit.execute("add", {"a": 1, "b": 2}).output == "3"

    threads = [guarded(functools.partial(change, p)) for p in "uvwx"] + [guarded(use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(toolkit) == 1 + 4 * (20 + 40)


def test_a_server_that_takes_a_name_later_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Your own tool stays what it is, and the clash is logged with both sources."""
    mine = named("s_grown", "mine")
    with Toolkit([mine], mcp_config={"s": sdk()}) as toolkit:
        before = toolkit.revision
        assert toolkit.execute("s_grow").output
        assert eventually(lambda: toolkit.revision > before)
        assert toolkit.execute("s_grown").output == "mine"
        assert "one from the MCP server 's', one from a function of yours" in caplog.text
        toolkit.register(named("another"))
        assert names(toolkit)[-2:] == ["s_grown", "another"]
        assert toolkit.unregister("s_grown")
        assert "I am new" in toolkit.execute("s_grown").output


# -- skills ----------------------------------------------------------------------------------


def test_the_prompt_names_the_skills() -> None:
    """It is empty without skills, and says so when there are none in the folders."""
    assert "- **look**: Looks." in Toolkit(skills=[LOOK]).skills_prompt()
    nothing = Toolkit(skills=[])
    assert nothing.skills_prompt() == "No skills are currently available."
    assert names(nothing) == []


def test_skills_that_may_not_be_loaded_are_not_named() -> None:
    """Where the tool is denied, the catalogue goes, too."""
    toolkit = Toolkit(skills=[LOOK], deny=["skill"])
    assert (toolkit.skills_prompt(), names(toolkit)) == ("", [])


def test_skills_may_be_given_in_every_form(tmp_path: Path) -> None:
    """Folders, data, a filter, a limit, or a set that is ready."""
    folder = tmp_path / "pdf"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: pdf\ndescription: Reads PDF.\n---\nRead it.")
    for i in range(12):
        (folder / f"f{i:02}.txt").touch()
    both = Toolkit(skills_dir=tmp_path, skills=[LOOK])
    assert list(both.skills.skills if both.skills else ()) == ["look", "pdf"]
    assert both.execute("skill", {"name": "pdf"}).output.count("<file>") == 10
    one = Toolkit(skills_dir=[tmp_path], skills=[LOOK], skills_filter=["pdf"], skill_sample_limit=3)
    assert one.execute("skill", {"name": "pdf"}).output.count("<file>") == 3
    assert one.execute("skill", {"name": "look"}).output == 'Skill "look" not found. Available skills: pdf'
    ready = load_skills(tmp_path, sample_limit=-1)
    assert Toolkit(skills=ready).skills is ready


def test_restrictions_hold_outside_runs_too() -> None:
    """From the call that loads the skill on, unless the caller keeps the account."""
    toolkit = Toolkit([named("greet"), named("shoot")], skills=[LOOK])
    assert toolkit.execute("shoot").output == "shoot"
    assert toolkit.execute("skill", {"name": "nope"}).is_error
    assert toolkit.execute("shoot").output == "shoot"
    loaded = toolkit.execute("skill", {"name": "look"})
    assert loaded.metadata["name"] == "look"
    refused = toolkit.execute("shoot")
    assert (refused.is_error, '"shoot" is not allowed by the skill "look"' in refused.output) == (True, True)
    assert toolkit.execute("greet").output == "greet"
    assert toolkit.execute("shoot", active_skills=()).output == "shoot"
    assert Toolkit([named("shoot")], skills=[LOOK]).execute("shoot", active_skills={"look"}).is_error


# -- executing -------------------------------------------------------------------------------


def test_arguments_are_checked_before_a_tool_runs() -> None:
    """Of functions and servers alike; a mapping of any kind will do."""
    with Toolkit(
        [add], mcp_config={"s": raw(names=[], tools=[{"name": "n", "inputSchema": NUMBER}])}
    ) as toolkit:
        assert toolkit.execute("add", {"a": "x", "b": 1}).output.startswith(
            "add: wrong arguments: a: expected"
        )
        assert toolkit.execute("s_n", {"n": "x"}).output.startswith(
            "s_n: wrong arguments: n: expected a number"
        )
        assert toolkit.execute("add", None).is_error


NUMBER = {"type": "object", "properties": {"n": {"type": "number"}}}


def test_what_goes_wrong_is_a_result() -> None:
    """An unknown tool, an exception, no more: nothing is raised."""

    def fail() -> None:
        """Fail."""
        raise KeyError

    toolkit = Toolkit([fail])
    assert toolkit.execute("nope", {}).output == "Unknown tool: nope. Available tools: fail"
    assert Toolkit().execute("nope").output == "Unknown tool: nope. Available tools: none"
    assert toolkit.execute("fail") == ToolResult.error("KeyError")


def test_a_time_limit_holds_outside_runs_too() -> None:
    """A tool that hangs is left behind and told to stop."""
    told = threading.Event()

    @tool(timeout=0.1)
    def hang(ctx: Context) -> str:
        """Hang."""
        while not ctx.cancelled:
            time.sleep(0.01)
        told.set()
        return "late"

    start = time.monotonic()
    assert Toolkit([hang]).execute("hang") == ToolResult.error("hang: timed out after 0.1 s")
    assert time.monotonic() - start < 5
    assert told.wait(5)


def test_cancelling_reaches_a_tool_outside_runs() -> None:
    """The scope of the context given ends the call; its result says so."""
    scope = CancelScope()

    @tool(timeout=30)
    def hang(ctx: Context) -> str:
        """Hang."""
        ctx.sleep(30)
        return "late"

    threading.Timer(0.05, scope.cancel).start()
    start = time.monotonic()
    result = Toolkit([hang]).execute("hang", {}, Context(scope=scope))
    assert time.monotonic() - start < 5
    assert (result.is_error, "cancelled" in result.output) == (True, True)


def test_a_question_is_a_result_with_the_request() -> None:
    """Answered, the call runs on."""

    @tool
    def order(ctx: Context) -> str:
        """Order a hat."""
        return f"a {ctx.ask('Which colour?')} hat"

    toolkit = Toolkit([order, relay_tool("pay", "Pay.", {"type": "object"})])
    request = pending_of(toolkit.execute("order"))
    assert request is not None
    assert request.prompt == "Which colour?"
    ctx = Context(answers=(Answer(request.id, data="red"),))
    assert toolkit.execute("order", {}, ctx).output == "a red hat"
    relayed = pending_of(toolkit.execute("pay", {"sum": 5}))
    assert relayed is not None
    assert (relayed.kind, relayed.data["arguments"]) == ("tool_call", {"sum": 5})


def test_a_tool_that_wants_approval_does_not_run_without() -> None:
    """It suspends; approved it runs, edited with other arguments, rejected not at all."""
    ran: list[int] = []

    @tool(approval=lambda args: args["n"] > 1)
    def shoot(n: int) -> None:
        """Shoot."""
        ran.append(n)

    toolkit = Toolkit([shoot])
    toolkit.execute("shoot", {"n": 1})
    request = pending_of(toolkit.execute("shoot", {"n": 2}))
    assert request is not None
    assert (request.kind, ran) == ("approval", [1])

    def answered(answer: Answer) -> ToolResult:
        return toolkit.execute("shoot", {"n": 2}, Context(answers=(answer,)))

    assert answered(Answer.reject(request, "no")).output.startswith("rejected (no)")
    assert answered(Answer.respond(request, "later")).output == "later"
    assert ran == [1]
    answered(Answer.approve(request))
    answered(Answer.edit(request, {"n": 7}))
    assert answered(Answer.edit(request, {"n": "x"})).is_error
    assert ran == [1, 2, 7]
    assert toolkit.execute("shoot", {}).is_error  # an approval that fails lets nothing through


# -- declaring -------------------------------------------------------------------------------


def test_tools_are_declared_as_each_provider_takes_them() -> None:
    """The same tool in three shapes."""
    toolkit = Toolkit([add, named("now")])
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    openai = toolkit.to_openai()
    assert openai[0]["type"] == "function"
    assert openai[0]["function"]["name"] == "add"
    assert openai[0]["function"]["description"] == "Add two numbers."
    closed = {**parameters, "additionalProperties": False}
    assert openai[0]["function"]["parameters"] == closed
    assert "strict" not in openai[0]["function"]
    anthropic = toolkit.to_anthropic()
    assert anthropic[0] == {"name": "add", "description": "Add two numbers.", "input_schema": closed}
    assert toolkit.to_gemini() == [
        {
            "functionDeclarations": [
                {"name": "add", "description": "Add two numbers.", "parameters": parameters},
                {"name": "now", "description": ""},
            ]
        }
    ]


def test_strict_mode_is_asked_for_where_it_can_be() -> None:
    """A tool with a free-form argument is declared without it."""

    def put(key: str, value: dict[str, int], note: str = "") -> None:
        """Put a value."""

    first, second = (t["function"] for t in Toolkit([add, put]).to_openai(strict=True))
    assert first["strict"] is True
    assert first["parameters"]["required"] == ["a", "b"]
    assert "strict" not in second
    assert second["parameters"]["required"] == ["key", "value"]


# -- options ---------------------------------------------------------------------------------


def test_options_of_the_built_ins_reach_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root, the variables of commands, the networks of the web tool."""
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("SECRET", "no")
    toolkit = Toolkit(builtins=["bash", "read"], root=tmp_path, env=["WANTED"], allow_private=["127.0.0.0/8"])
    out = toolkit.execute("bash", {"command": "pwd; echo $WANTED $SECRET"}).output
    assert out.split() == [str(tmp_path.resolve()), "yes"]
    assert "outside the root" in toolkit.execute("read", {"path": "/etc/hostname"}).output


def test_built_ins_may_be_given_ready_made(tmp_path: Path) -> None:
    """With any option of builtin_tools; your own still replace them."""
    (tmp_path / "big").write_text("x" * 500)
    ready = builtin_tools("read-only", root=tmp_path, max_output=100)
    toolkit = Toolkit([named("grep", "mine")], builtins=ready)
    assert names(toolkit) == ["read", "glob", "grep"]
    assert len(toolkit.execute("read", {"path": "big"}).output) < 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_duplicate": "maybe"}, "on_duplicate must be"),
        ({"allow": "read"}, "allow must be a list"),
        ({"deny": [1]}, "deny must be a list"),
        ({"root": "."}, "root, env and allow_private are for the built-in tools"),
        ({"builtins": False, "env": ["X"]}, "root, env and allow_private"),
        ({"builtins": ["nope"]}, "no built-in is called nope"),
        ({"builtins": [named("x"), "read"]}, "not both"),
        ({"builtins": [named("x")], "root": "."}, "belong to the builtin_tools"),
        ({"skills_filter": ["x"]}, "skills_filter is for"),
        ({"skills": load_skills(), "skill_sample_limit": 3}, "belong to the SkillSet"),
        ({"skills": [], "skill_sample_limit": -2}, "sample_limit"),
        ({"mcp_config": {"s": 5}}, "s"),
        ({"mcp_config": "/nowhere/.mcp.json"}, "nowhere"),
    ],
)
def test_wrong_options_are_told_at_once(options: dict[str, Any], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigurationError, match=message):
        Toolkit(**options)


# -- MCP servers -----------------------------------------------------------------------------


def test_a_failing_server_disturbs_nobody() -> None:
    """Its status says why; the other tools are there."""
    servers = {"good": raw(names=["echo"]), "bad": raw(exit="initialize", code=3, stderr="no licence")}
    with Toolkit([add], mcp_config=servers) as toolkit:
        assert names(toolkit) == ["good_echo", "add"]
        status = toolkit.mcp_status()
        assert (status["good"].state, status["bad"].state) == ("connected", "failed")
        assert "no licence" in str(status["bad"].error)


def test_closing_ends_what_the_toolkit_started_and_nothing_else() -> None:
    """A source of your own stays yours; a closed toolkit still answers."""
    with McpSource({"s": raw(names=["echo"])}) as source:
        with Toolkit(mcp_config=source) as toolkit:
            assert names(toolkit) == ["s_echo"]
        assert toolkit.execute("s_echo", {"text": "x"}).output == "x"
    toolkit = Toolkit(mcp_config={"s": raw(names=["echo"])})
    toolkit.close()
    toolkit.close()
    assert toolkit.execute("s_echo", {"text": "x"}).is_error
    assert toolkit.mcp_status()["s"].state != "connected"
    with pytest.raises(ConfigurationError, match="belongs to the McpSource"):
        Toolkit(mcp_config=source, wait_for=lambda request: None)


def test_an_error_while_building_leaves_no_server_behind(tmp_path: Path) -> None:
    """Servers that were started already are ended."""
    log = tmp_path / "log"
    with pytest.raises(ConfigurationError, match="two tools"):
        Toolkit([named("s_echo")], mcp_config={"s": raw(names=["echo"], log=str(log))})
    assert "initialize" in log.read_text()
    assert not [t for t in threading.enumerate() if t.name.startswith("toolnexus-mcp")]


def test_building_can_be_cancelled() -> None:
    """A server that hangs does not hold the program."""
    scope = CancelScope()
    threading.Timer(0.2, scope.cancel).start()
    start = time.monotonic()
    with pytest.raises(RunCancelledError):
        Toolkit(mcp_config={"s": raw(hang="initialize")}, scope=scope)
    assert time.monotonic() - start < 10


def test_a_person_is_asked_through_wait_for() -> None:
    """What a server asks reaches the toolkit's function."""
    asked: list[Request] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request)
        return Answer(request.id, data={"name": "Ada"})

    with Toolkit(mcp_config={"s": sdk()}, wait_for=wait_for) as toolkit:
        assert "booked for Ada, 2" in toolkit.execute("s_book").output
    assert [request.kind for request in asked] == ["input"]


# -- what it costs ---------------------------------------------------------------------------


def test_a_toolkit_without_servers_does_not_import_mcp() -> None:
    """Nor anything else that only another source needs."""
    code = """
import sys
from toolnexus import Toolkit
def add(a: int, b: int) -> int: return a + b
plain = Toolkit([add])
plain.execute("add", {"a": 1, "b": 2})
plain.to_openai(strict=True), plain.to_gemini()
print(sorted({"mcp", "yaml", "bs4", "pathspec", "asyncio", "jsonschema", "pydantic"} & set(sys.modules)))
Toolkit([add], builtins="read-only", root=".")
print(sorted({"mcp", "yaml", "bs4", "asyncio", "jsonschema", "pydantic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n[]\n", done.stderr


def test_five_hundred_tools_cost_little_more_than_making_their_schemas() -> None:
    """What the toolkit adds to its sources is small, measured in the same breath."""
    functions: list[Any] = []
    for i in range(500):

        def function(text: str, count: int = 1, tags: list[str] | None = None) -> str:
            """Do something."""
            return text

        function.__name__ = f"function_{i}"
        functions.append(function)

    def best(work: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    tools = [tool(function) for function in functions]
    making = best(lambda: [tool(function) for function in functions])
    floor = best(lambda: json.dumps([t.input_schema for t in tools]))
    assert best(lambda: Toolkit(functions)) < 2 * making + 10 * floor
    assert best(lambda: Toolkit(tools)) < 5 * floor
    toolkit = Toolkit(tools)
    assert best(lambda: toolkit.tools) < floor


def test_its_logger_is_toolnexus(caplog: pytest.LogCaptureFixture) -> None:
    """So that its warnings can be turned off by name."""
    caplog.set_level(logging.WARNING, "toolnexus")
    Toolkit([add], deny=["nope"])
    assert {record.name for record in caplog.records} == {"toolnexus.tools"}
