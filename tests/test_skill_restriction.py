"""A skill's allowed-tools hold in a run: from the moment it is loaded, whatever becomes of the transcript."""

from __future__ import annotations

from typing import Any

from toolnexus import Client, Tool, Toolkit
from toolnexus.testing import ModelServer
from toolnexus.tools.skills import SkillDef


def toolkit(ran: list[str]) -> Toolkit:
    def noting(name: str) -> Tool:
        return Tool(name, execute=lambda args, ctx: ran.append(name) or "ok")

    skill = SkillDef("look", "Only look.", description="Looks.", allowed_tools=["read"])
    return Toolkit([noting("read"), noting("bash")], skills=[skill])


def run(
    calls: list[list[tuple[str, dict[str, Any]]]], **options: Any
) -> tuple[list[str], list[tuple[str, bool]]]:
    ran: list[str] = []
    with ModelServer() as server:
        for turn in calls:
            server.call_many(turn)
        server.say("done")
        with Client(base_url=server.base_url, model="m", **options) as client:
            result = client.run("go", toolkit(ran))
    return ran, [(c.name, c.is_error) for c in result.tool_calls]


def test_the_restriction_holds_in_the_very_turn() -> None:
    """A call beside the one that loads the skill is judged by the skill, too."""
    ran, calls = run([[("skill", {"name": "look"}), ("bash", {}), ("read", {})]])
    assert ran == ["read"]
    assert calls == [("skill", False), ("bash", True), ("read", False)]


def test_what_came_before_the_skill_was_allowed() -> None:
    """The restriction begins when the skill is loaded, in call order."""
    ran, _ = run([[("bash", {}), ("skill", {"name": "look"})], [("bash", {})]])
    assert ran == ["bash"]


def test_the_restriction_survives_a_shortened_transcript() -> None:
    """A hook that sends less does not lift it."""
    only_task = {"before_llm": lambda view: {"messages": view["messages"][:1]}}
    ran, calls = run([[("skill", {"name": "look"})], [("bash", {})]], hooks=only_task)
    assert ran == []
    assert calls[-1] == ("bash", True)
