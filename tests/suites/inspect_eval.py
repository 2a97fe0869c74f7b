"""An evaluation with Inspect's mock model: prints what each of its samples has found in its sandbox, as JSON."""

from __future__ import annotations

import json
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelAPI, ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

SAMPLES = 3
# Each sample sees its own file, leaves one behind, and must not see that of another.
COMMAND = "cat number.txt; ls ~ | grep -c mark; touch ~/mark-$$; hostname"


async def count(self: ModelAPI, text: str) -> int:
    """Inspect would download the vocabulary of a tokenizer."""
    return len(text) // 4


ModelAPI.count_text_tokens = count  # type: ignore[method-assign]


def outputs() -> list[ModelOutput]:
    for_one = [
        ModelOutput.for_tool_call("mockllm", "bash", {"command": COMMAND}),
        ModelOutput.from_content("mockllm", "done"),
    ]
    return for_one * SAMPLES


def main(sandbox: str) -> None:
    samples = [Sample(f"number {n}", target="done", files={"number.txt": f"{n}\n"}) for n in range(SAMPLES)]
    task = Task(samples, solver=[use_tools(bash(timeout=60)), generate()], scorer=includes())
    given = ("remote", sandbox) if sandbox else "remote"
    model = get_model("mockllm/model", custom_outputs=outputs())
    (log,) = eval(task, model=model, sandbox=given, max_samples=1, display="none", log_dir="logs")
    tools = [it for sample in log.samples or () for it in sample.messages if it.role == "tool"]
    found = [it.text or str(it.error) for it in tools]
    errors = [log.error, *(sample.error for sample in log.samples or ())]
    print(json.dumps({"status": log.status, "errors": [it.message for it in errors if it], "found": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
