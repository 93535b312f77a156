"""The real Claude Code and Codex: packages from PyPI with their binaries. They run headless, with a model of this
server, offline except for it."""

import importlib.util
import os
from pathlib import Path

import clients_venv

PACKAGES = ["claude-agent-sdk==0.2.187", "openai-codex-cli-bin==0.163.0"]
BINARIES = {"claude_code": ("claude_agent_sdk", "_bundled/claude"), "codex": ("codex_cli_bin", "bin/codex")}
SCRIPTED_TOOLS = "Bash Read Edit Write ToolSearch"


def enter():
    clients_venv.enter(PACKAGES, "agents-venv", ["--no-deps"])


def binary(name):
    module, path = BINARIES[name]
    return str(Path(importlib.util.find_spec(module).origin).parent / path)


def command(name, url, home, task, scripted=False, model="nano", turns=60):
    """Returns the command line and the environment of a session that begins with `task`. `home` is an empty folder.
    `scripted`: the model's calls are known, so it may run commands and write files; otherwise it may only read."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    if name == "claude_code":
        environment |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
                        "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                        **({} if scripted else {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512"})}
        return [binary(name), "-p", task, "--model", model, "--output-format", "json", "--max-turns", str(turns), "--autocompact", "100000",
                "--allowedTools", SCRIPTED_TOOLS if scripted else "Read"], environment
    environment |= {"CODEX_HOME": str(home), "DSV4_KEY": "none"}
    provider = '{name="dsv4",base_url="%s/v1",wire_api="responses",env_key="DSV4_KEY"}' % url
    settings = {"model_provider": '"dsv4"', "model": '"%s"' % model, "model_providers.dsv4": provider, "model_context_window": "272000",
                "model_auto_compact_token_limit": "240000"}
    freedom = ["--dangerously-bypass-approvals-and-sandbox"] if scripted else ["-c", 'sandbox_mode="read-only"']
    return [binary(name), "exec", "--skip-git-repo-check", *freedom,
            *(word for key, value in settings.items() for word in ("-c", "%s=%s" % (key, value))), task], environment
