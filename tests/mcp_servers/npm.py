"""The official servers and the conformance suite from npm, installed once, beside the environments."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venvs" / "mcp-npm"
PACKAGES = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
    "@modelcontextprotocol/conformance": "0.1.16",
    # What is to come: the scenarios for the protocol of 2026.
    "conformance-next": "npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
}
#: The suite needs at least this Node.js; where there is an older one, a package brings it.
NODE = 22


@cache
def install() -> Path:
    """Return the folder of the installed packages; skip the test where there is no npm."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs Node.js and npm")
    packages = {**PACKAGES, **_node_package()}
    wanted = json.dumps({"name": "mcp-npm", "private": True, "dependencies": packages}, indent=1)
    done = CACHE / "installed.json"
    if not done.exists() or done.read_text() != wanted:
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / "package.json").write_text(wanted)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        result = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=400)
        assert result.returncode == 0, result.stderr
        done.write_text(wanted)
    return CACHE / "node_modules"


def _node_package() -> dict[str, str]:
    """Return the package with a newer Node.js, where it is needed and there is one."""
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.strip().lstrip("v").split(".")[0]) >= NODE:
        return {}
    chip = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if platform.system() != "Linux" or chip is None:
        pytest.skip(f"needs Node.js {NODE}")
    return {f"node-linux-{chip}": str(NODE)}


def node() -> str:
    """Return a Node.js that is new enough."""
    brought = sorted(install().glob("node-linux-*/bin/node"))
    return str(brought[0]) if brought else "node"


def server(name: str, *args: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of an official server."""
    script = install() / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return {"command": node(), "args": [str(script), *args], **more}
