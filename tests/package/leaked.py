"""Fails unless a report has what tests/fixtures/vm/leak.c leaks and allocates, with complete stacks and no losses.

    leaked.py REPORT
"""

import json
import sys

LEAKED = (1000, 123_000)
ALLOCATED = (2000, 200_000)

report = json.load(open(sys.argv[1]))
names = [frame["symbol"] for frame in report["frames"]]
# The C library's own allocations are not the program's.
own = [stack for stack in report["stacks"] if names[stack["frames"][1]] in ("leak", "main")]
for what, expected in (("live", LEAKED), ("allocated", ALLOCATED)):
    found = tuple(sum(stack[what][unit] for stack in own) for unit in ("objects", "bytes"))
    assert found == expected, f"{what}: {found}, not {expected}"
assert all(stack["status"] == "complete" for stack in own), [stack["status"] for stack in own]
assert not any(report["lost"].values()), report["lost"]
